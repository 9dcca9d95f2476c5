"""Keys of Ed25519 (RFC 8032, the package ``cryptography``), for rows of remotes and for bundles.

A secret key is ``NAME:<base64url of 32 bytes>``, and so is a public one: as an argument, in a variable, or in a file.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import Any, NamedTuple

from cachec.base import file_ownership
from cachec.errors import ConfigError

#: Bytes of a key, secret or public.
SIZE = 32

#: What no key may be called: the shared secret of a team goes by it.
HMAC = "hmac"

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_MAX_FILE = 4096


class Keypair(NamedTuple):
    """A new key, as both are written."""

    secret: str
    public: str


def keypair(name: str) -> Keypair:
    """A new key of that name. Raises ConfigError for no name, and without the package."""
    if re.fullmatch(NAME, name) is None or name == HMAC:
        raise ConfigError(f"{name!r} is no name of a key: 1 to 64 letters, digits, '.', '_' or '-'")
    signer = Signer(encode_key(name, os.urandom(SIZE)), "a new key")
    return Keypair(signer.secret, signer.public)


class Signer:
    """Who signs. secret, public: both keys, as they are written; name: what both begin with."""

    def __init__(self, secret: str, where: str) -> None:
        """where: what names the key in a message. Raises ConfigError."""
        self.name, seed = read(secret, SIZE, where)
        self._key = ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        self.secret = encode_key(self.name, seed)
        self.public = encode_key(self.name, self._key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The signature, of 64 bytes."""
        signed: bytes = self._key.sign(data)
        return signed


def has_signed(public: bytes, signature: bytes, data: bytes) -> bool:
    """Whether a signature of these bytes is by the key. Raises ConfigError without the package."""
    key = ed25519().Ed25519PublicKey
    from cryptography.exceptions import InvalidSignature

    try:
        key.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def encode_key(name: str, data: bytes) -> str:
    """A key or a signature as text."""
    return f"{name}:{base64.urlsafe_b64encode(data).decode()}"


def read(text: str, size: int, where: str) -> tuple[str, bytes]:
    """Name and bytes. Raises ConfigError, which does not show what may be a secret."""
    name, _, encoded = text.partition(":")
    try:
        data = base64.b64decode(encoded.strip(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    is_as_written = encode_key(name, data) == text.strip()  # base64 leaves bits that say nothing
    if re.fullmatch(NAME, name) is None or len(data) != size or not is_as_written:
        raise ConfigError(f"{where} holds no NAME:KEY as `cachec remote keygen NAME` prints it")
    return name, data


def from_file(path: str, where: str, *, is_secret: bool = True) -> str:
    """The text of a key that is in a file. Raises ConfigError; of a secret also where others could have written it."""
    try:
        return file_ownership.read_regular(path, _MAX_FILE, own=is_secret).decode("ascii", "replace").strip()
    except OSError as error:
        raise ConfigError(f"{where}: the file {path} can't be read: {error.strerror}") from error


def public_key(given: str, where: str) -> str:
    """A public key that is given itself, or as the file that it is in. Raises ConfigError."""
    text = given if ":" in given and "/" not in given else from_file(given, where, is_secret=False)
    return encode_key(*read(text, SIZE, where))


def has_package() -> bool:
    """Whether signatures can be made and checked."""
    from importlib.util import find_spec

    return find_spec("cryptography") is not None


def ed25519() -> Any:
    """The module of the package. Raises ConfigError without it."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519 as module
    except ImportError as error:
        raise ConfigError("signatures need a package: pip install 'cachec[sign]'") from error
    return module
