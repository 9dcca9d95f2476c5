"""Whose word counts: signatures of rows.

A row is signed over ``cachec remote 1``, a newline and the node, which names itself by namespace, key and reads: by
Ed25519 (RFC 8032, the package ``cryptography``), where a secret key is ``NAME:<base64url of 32 bytes>``, and so are
public ones and, with 64 bytes, signatures; or by HMAC-SHA256 with a secret that all share, under the name ``hmac``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from cachec.base import foreign
from cachec.config import KEY, SECRET
from cachec.errors import ConfigError

HMAC = "hmac"

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_MAX_KEY = 4096


class Keypair(NamedTuple):
    """A new key, as both are written."""

    secret: str
    public: str


def keypair(name: str) -> Keypair:
    """A new key of that name. Raises ConfigError for no name, and without the package."""
    if re.fullmatch(_NAME, name) is None or name == HMAC:
        raise ConfigError(f"{name!r} is no name of a key: 1 to 64 letters, digits, '.', '_' or '-'")
    seed = os.urandom(32)
    public = _ed25519().Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return Keypair(_written(name, seed), _written(name, public))


class Trust:
    """Who is believed, and as whom rows are signed here."""

    def __init__(self, trusted: str, environ: Mapping[str, str], *, is_written: bool) -> None:
        """trusted: public keys with commas between, ``hmac``, or nothing for everybody. Raises ConfigError."""
        self._trusted: dict[str, bytes] = {}
        self._secret = environ.get(SECRET, "").encode() if trusted == HMAC else b""
        self._own = ("", b"")
        if trusted == HMAC:
            if len(self._secret) < 16:
                raise ConfigError(f"trust=hmac needs a secret of 16 characters or more in {SECRET}")
            return
        for each in filter(None, trusted.split(",")):
            name, key = _read(each, 32, "trust")
            self._trusted[name] = key
        if is_written and (given := environ.get(KEY, "")):
            name, seed = self._own = _read(_from_file(given), 32, KEY)
            public = _ed25519().Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
            if self._trusted and self._trusted.get(name) != public:
                raise ConfigError(f"the key {name} of {KEY} is none of those that are trusted; nobody would believe it")
        elif is_written and self._trusted:
            raise ConfigError(f"only signed results are trusted, and {KEY} has no key to sign with; add mode=read")

    @property
    def is_limited(self) -> bool:
        """Whether only what somebody has signed is believed."""
        return bool(self._trusted or self._secret)

    def signature(self, data: bytes) -> bytes:
        """What goes with these bytes; nothing where there is no key."""
        name, seed = self._own
        if self._secret:
            return _written(HMAC, hmac.digest(self._secret, data, "sha256")).encode()
        if not name:
            return b""
        return _written(name, _ed25519().Ed25519PrivateKey.from_private_bytes(seed).sign(data)).encode()

    def why_untrusted(self, signature: bytes, data: bytes) -> str:
        """Why nobody who is trusted has signed these bytes so; empty where somebody has, or everybody is."""
        if self._secret:
            expected = _written(HMAC, hmac.digest(self._secret, data, "sha256")).encode()
            return "" if hmac.compare_digest(expected, signature) else "is not signed with the secret"
        if not self._trusted:
            return ""
        if not signature:
            return "is not signed"
        try:
            name, signed = _read(signature.decode("ascii"), 64, "the signature")
        except (UnicodeDecodeError, ConfigError):
            return "has no signature of Ed25519"
        if name not in self._trusted:
            return f"is signed by {name}, who is not trusted"
        from cryptography.exceptions import InvalidSignature

        try:
            _ed25519().Ed25519PublicKey.from_public_bytes(self._trusted[name]).verify(signed, data)
        except (InvalidSignature, ValueError):
            return f"has a wrong signature of {name}"
        return ""


def _written(name: str, data: bytes) -> str:
    return f"{name}:{base64.urlsafe_b64encode(data).decode()}"


def _read(text: str, size: int, where: str) -> tuple[str, bytes]:
    """Name and bytes. Raises ConfigError, which does not show what may be a secret."""
    name, _, encoded = text.partition(":")
    try:
        data = base64.b64decode(encoded.strip(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    is_as_written = _written(name, data) == text.strip()  # base64 leaves bits that say nothing
    if re.fullmatch(_NAME, name) is None or len(data) != size or not is_as_written:
        raise ConfigError(f"{where} holds no NAME:KEY as `cachec remote keygen NAME` prints it")
    return name, data


def _from_file(given: str) -> str:
    """A key as it is given, or the content of the file that it is in."""
    if not given.startswith("/"):
        return given
    try:
        return foreign.read_regular(given, _MAX_KEY, own=True).decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigError(f"{KEY}: the file {given} can't be read: {error.strerror}") from error


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError("signatures need a package: pip install 'cachec[sign]'") from error
    return ed25519
