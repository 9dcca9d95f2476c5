"""Trust in rows, by signatures.

A row is signed over ``cachec remote 2``, a newline and the node, which names itself by namespace, key and reads: by
Ed25519, with keys and signatures as ``keys`` writes them, or by HMAC-SHA256 with a secret that all share, under the
name ``hmac``.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from cachec.config import KEY, SECRET
from cachec.errors import ConfigError
from cachec.remote.keys import HMAC, SIZE, Signer, encode_key, from_file, has_package, has_signed, read


class Trust:
    """Who is believed, and as whom rows are signed here."""

    def __init__(self, trusted: str | None, environ: Mapping[str, str], *, is_written: bool) -> None:
        """trusted: public keys with commas between, ``hmac``, or None for everybody. Raises ConfigError."""
        self._trusted: dict[str, bytes] = {}
        self._secret = environ.get(SECRET, "").encode() if trusted == HMAC else b""
        self._own: Signer | None = None
        if trusted == HMAC:
            if len(self._secret) < 16:
                raise ConfigError(f"trust=hmac needs a secret of 16 characters or more in {SECRET}")
            return
        for each in [] if trusted is None else trusted.split(","):
            name, key = read(each, SIZE, "trust")
            self._trusted[name] = key
        if self._trusted and not has_package():  # or each row would seem to be damaged
            raise ConfigError("signed rows can't be checked without a package: pip install 'cachec[sign]'")
        if is_written and (given := environ.get(KEY, "")):
            self._own = Signer(from_file(given, KEY) if given.startswith("/") else given, KEY)
            name = self._own.name
            if self._trusted and (
                name not in self._trusted or encode_key(name, self._trusted[name]) != self._own.public
            ):
                raise ConfigError(f"the key {name} of {KEY} is none of those that are trusted; nobody would believe it")
        elif is_written and self._trusted:
            raise ConfigError(f"only signed results are trusted, and {KEY} has no key to sign with; add mode=read")

    @property
    def is_limited(self) -> bool:
        """Whether only signed rows are accepted."""
        return bool(self._trusted or self._secret)

    @property
    def is_signing(self) -> bool:
        """Whether written rows are signed."""
        return bool(self._secret or self._own is not None)

    def may_pass_on(self, source: Trust) -> bool:
        """Whether what counts by ``source`` may be written, and signed, here: everybody whose word it rests on is
        believed here too, or nobody's word is given for it.
        """
        if not self.is_signing:
            return True
        own = set() if self._own is None else {(self._own.name, self._own.public)}
        return source.is_limited and source._words() <= self._words() | own

    def _words(self) -> set[tuple[str, str]]:
        """Who is believed, by name and public key, or by the secret."""
        if self._secret:
            return {(HMAC, self._secret.decode())}
        return {(name, encode_key(name, key)) for name, key in self._trusted.items()}

    def signature(self, data: bytes) -> bytes:
        """Return the signature of these bytes; empty without a key."""
        if self._secret:
            return encode_key(HMAC, hmac.digest(self._secret, data, "sha256")).encode()
        if self._own is None:
            return b""
        return encode_key(self._own.name, self._own.sign(data)).encode()

    def why_untrusted(self, signature: bytes, data: bytes) -> str:
        """Return why no trusted signer signed these bytes; empty if one did, or if all rows are trusted."""
        if self._secret:
            expected = encode_key(HMAC, hmac.digest(self._secret, data, "sha256")).encode()
            return "" if hmac.compare_digest(expected, signature) else "is not signed with the secret"
        if not self._trusted:
            return ""
        if not signature:
            return "is not signed"
        try:
            name, signed = read(signature.decode("ascii"), 64, "the signature")
        except (UnicodeDecodeError, ConfigError):
            return "has no signature of Ed25519"
        if name not in self._trusted:
            return f"is signed by {name}, who is not trusted"
        return "" if has_signed(self._trusted[name], signed, data) else f"has a wrong signature of {name}"
