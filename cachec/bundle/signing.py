"""Ed25519 signatures of bundles, by the package ``cryptography``. Keys are PEM files, as ``openssl genpkey`` writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cachec.bundle.format import BundleError
from cachec.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Signer:
    """Who signs. public: the key that a signature is checked with, in hexadecimal."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """path: a private key, in PEM without a password. Raises UsageError, OSError."""
        self._key = _private(path)
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, data: bytes) -> str:
        """The signature, in hexadecimal."""
        return self._key.sign(data).hex()


def _private(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    data = Path(path).read_bytes()
    with_package()
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{os.fspath(path)}: expected a private key in PEM, without a password; {error}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"{os.fspath(path)}: expected an Ed25519 key: openssl genpkey -algorithm ed25519")
    return key


def trusted(path: str | os.PathLike[str]) -> str:
    """The public key in a file, in hexadecimal. Raises UsageError, OSError."""
    data = Path(path).read_bytes()
    with_package()
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(data)
    except ValueError as error:
        raise UsageError(f"{os.fspath(path)}: expected a public key in PEM; {error}") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError(f"{os.fspath(path)}: expected an Ed25519 key: openssl pkey -in key.pem -pubout")
    return key.public_bytes_raw().hex()


def check(public: str, signature: str, data: bytes) -> None:
    """Raise BundleError unless the signature of these bytes is by that key."""
    with_package()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        raise BundleError(f"its signature is not by the key {public}") from None


def has_package() -> bool:
    """Whether signatures can be made and checked."""
    from importlib.util import find_spec

    return find_spec("cryptography") is not None


def with_package() -> None:
    """Raise UsageError where they can't."""
    if not has_package():
        raise UsageError("signatures need the package cryptography: pip install 'cachec[sign]'")
