"""A channel to a server of gRPC by the package ``grpcio``: calls of bytes for bytes that end in time.

The package is told nothing of messages (reapi_messages.py). It takes no message of more than ``MAX_MESSAGE`` bytes,
unpacked, and has a time for all of a call; what it has not is one for a stream in which nothing comes any more.
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import threading
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import STALL_SECONDS, run_with_deadline

if TYPE_CHECKING:
    from cachec.remote.urls import Address


@contextlib.contextmanager
def _set_by_default(**variables: str) -> Iterator[None]:
    """Variables that the package reads once, when it is imported. What the user has set stays."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


# Its log goes to the standard error, which is a compiler's here. And its own handlers of fork end a child that exits,
# without a question, with SIGSEGV where another thread of the parent had one (1.85).
with _set_by_default(GRPC_VERBOSITY="NONE", GRPC_ENABLE_FORK_SUPPORT="0"):
    import grpc

#: Bytes of a message that comes: gRPC's own default, which servers keep to.
MAX_MESSAGE = 4 << 20

CONNECT_SECONDS = 1.0

#: Seconds after its time at which a call is left to itself that has not ended: in a process that was forked after
#: somebody else used the package.
_GRACE = 0.25

_FAULTS = {
    "DEADLINE_EXCEEDED": Fault.REMOTE_TIMEOUT,
    "UNAUTHENTICATED": Fault.REMOTE_REFUSED,
    "PERMISSION_DENIED": Fault.REMOTE_REFUSED,
    "UNIMPLEMENTED": Fault.REMOTE_REFUSED,
    "RESOURCE_EXHAUSTED": Fault.REMOTE_FULL,
    "UNAVAILABLE": Fault.REMOTE_UNREACHABLE,
    "CANCELLED": Fault.REMOTE_UNREACHABLE,
    "ABORTED": Fault.REMOTE_UNREACHABLE,
}

#: What details say where the name of a code says something else, the first that fits.
_DETAILS = (
    ("CERTIFICATE_VERIFY_FAILED", Fault.REMOTE_REFUSED),
    ("Hostname Verification", Fault.REMOTE_REFUSED),
    ("essage larger than max", Fault.REMOTE_CORRUPT),  # of this side
)

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", -1),
    ("grpc.primary_user_agent", "cachec"),
    ("grpc.use_local_subchannel_pool", 1),  # another channel is another connection
    ("grpc.enable_retries", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
)


@cache
def asked_by() -> int:
    """Return the number of the process, or of its parent, that made the first call and has the package's threads."""
    return os.getpid()


def fault_of(number: int) -> tuple[Fault, str]:
    """What the number of a code of gRPC means for a remote, and its name."""
    name = next((code.name for code in grpc.StatusCode if code.value[0] == number), f"code {number}")
    return _FAULTS.get(name, Fault.REMOTE_CORRUPT), name


class Cancellable(Protocol):
    """A call of grpcio, which has no types."""

    def cancel(self) -> bool: ...


class GrpcChannel:
    """A connection, made by the first call, and again where it was lost. Raises StoreFault."""

    def __init__(self, address: Address) -> None:
        self._shown = address.shown
        self._pid = os.getpid()
        host = f"[{address.host}]" if ":" in address.host else address.host
        target = f"dns:///{host}:{address.port}"
        if address.scheme == "reapis":
            credentials = grpc.ssl_channel_credentials(_roots())
            self._channel = grpc.secure_channel(target, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._metadata: tuple[tuple[str, str], ...] = ()
        if address.user:
            self._metadata = (("authorization", f"Basic {base64.b64encode(address.user.encode()).decode()}"),)
        elif address.token:
            self._metadata = (("authorization", f"Bearer {address.token}"),)

    def asked(self, method: str, request: bytes, until: float, *, none: str = "NOT_FOUND") -> bytes | None:
        """The answer; None where the code of an error is ``none``."""
        call = self._channel.unary_unary(method)

        def answer() -> bytes:
            reply: bytes = call(request, timeout=self._remaining_seconds(until), metadata=self._metadata)
            return reply

        try:
            with self._faults(method):
                return run_with_deadline(answer, until + _GRACE, self._shown)
        except _RpcStatus as told:
            if told.code == none:
                return None
            raise told.fault from told.__cause__

    def read(self, method: str, request: bytes, until: float) -> Iterator[bytes] | None:
        """The answers as they come; None where what was asked for is not there."""
        answers = self._answers(method, request, until)
        try:
            first = [next(answers, None)]
        except _RpcStatus as told:
            if told.code == "NOT_FOUND":
                return None
            raise told.fault from told.__cause__
        return self._with(first, answers)

    def _with(self, first: list[bytes | None], others: Iterator[bytes]) -> Iterator[bytes]:
        if (answer := first.pop()) is not None:
            yield answer
            del answer  # some MiB
            try:
                yield from others
            except _RpcStatus as told:
                raise told.fault from told.__cause__

    def _answers(self, method: str, request: bytes, until: float) -> Iterator[bytes]:
        stalls = _Stalls()
        with self._faults(method, stalls):
            call = self._channel.unary_stream(method)(
                request, timeout=self._remaining_seconds(until), metadata=self._metadata
            )
            with stalls.ending(call):
                while answers := list(islice(call, 1)):
                    stalls.rest()
                    yield answers.pop()  # popped, so that it is not kept alive while the next one arrives
                    stalls.wait()

    def write(self, method: str, requests: Iterator[bytes], until: float) -> bytes:
        """The answer to all requests. Raises what ``requests`` raises, too."""
        errors: list[Exception] = []
        stalls = _Stalls()

        def sent() -> Iterator[bytes]:
            # In a thread of the package, which would print what is raised here.
            try:
                for request in requests:
                    stalls.wait()
                    yield request
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
            stalls.rest()  # the server may take its time for what it has

        try:
            with self._faults(method, stalls):
                remaining = self._remaining_seconds(until)
                call = self._channel.stream_unary(method).future(sent(), timeout=remaining, metadata=self._metadata)
                with stalls.ending(call):
                    answer: bytes = call.result()
        except _RpcStatus as told:
            if errors and isinstance(errors[0], OSError):
                raise errors[0] from None
            raise told.fault from told.__cause__
        return answer

    def close(self) -> None:
        """Close the channel: running calls end in a fault. Does nothing in a forked process."""
        if self._pid == os.getpid():
            self._channel.close()

    def _remaining_seconds(self, until: float) -> float:
        remaining = until - monotonic()
        if remaining <= 0:
            raise StoreFault(Fault.REMOTE_TIMEOUT, f"{self._shown} was not asked in time")
        return remaining

    @contextlib.contextmanager
    def _faults(self, method: str, stalls: _Stalls | None = None) -> Iterator[None]:
        try:
            yield
        except (StoreFault, _RpcStatus):
            raise
        except grpc.FutureCancelledError as error:
            raise self._status_of("CANCELLED", "it was given up", method, stalls) from error
        except grpc.RpcError as error:
            raise self._status_of(error.code().name, error.details() or "", method, stalls) from error
        except (
            ValueError
        ) as error:  # it was closed by another thread; or what it says of metadata: secrets are in there
            words = f"{self._shown} can't be asked: {type(error).__name__}"
            raise _RpcStatus("CANCELLED", StoreFault(Fault.REMOTE_UNREACHABLE, words)) from None

    def _status_of(self, code: str, details: str, method: str, stalls: _Stalls | None) -> _RpcStatus:
        known = _FAULTS.get(code, Fault.REMOTE_CORRUPT)
        fault = next((fault for words, fault in _DETAILS if words in details), known)
        if stalls is not None and stalls.has_ended_it:
            fault, details = Fault.REMOTE_TIMEOUT, "nothing came for seconds"
        words = "".join(each if each.isprintable() else " " for each in details[:200])
        name = method.rpartition("/")[2]
        return _RpcStatus(code, StoreFault(fault, f"{self._shown} answers {name} with {code}: {words}"))


class _RpcStatus(Exception):
    """What a server answered. code: of gRPC. fault: what that is raised as."""

    def __init__(self, code: str, fault: StoreFault) -> None:
        super().__init__(code)
        self.code = code
        self.fault = fault


class _Stalls:
    """Ends a call in which nothing moves for ``STALL_SECONDS``. has_ended_it: whether it did."""

    def __init__(self) -> None:
        self._since: float | None = monotonic()
        self._is_left = threading.Event()
        self.has_ended_it = False

    @contextlib.contextmanager
    def ending(self, call: Cancellable) -> Iterator[None]:
        """Watch a call; it ends with this in any case."""
        threading.Thread(target=self._watch, args=(call,), daemon=True).start()
        try:
            yield
        finally:
            self._is_left.set()
            call.cancel()

    def wait(self) -> None:
        """From now on something is to come, or to go."""
        self._since = monotonic()

    def rest(self) -> None:
        """What happens until ``wait`` is no fault of the server."""
        self._since = None

    def _watch(self, call: Cancellable) -> None:
        remaining = STALL_SECONDS
        while not self._is_left.wait(remaining):
            since = self._since
            remaining = STALL_SECONDS if since is None else STALL_SECONDS - (monotonic() - since)
            if remaining <= 0:
                self.has_ended_it = True
                call.cancel()
                return


def _roots() -> bytes | None:
    """The certificates that Python's ``ssl`` trusts, as the engine for HTTP does; None for those of the package."""
    places = ssl.get_default_verify_paths()
    with contextlib.suppress(OSError):
        if places.cafile:
            return Path(places.cafile).read_bytes()
        if places.capath:
            return b"\n".join(path.read_bytes() for path in sorted(Path(places.capath).glob("*.[0-9]"))) or None
    return None
