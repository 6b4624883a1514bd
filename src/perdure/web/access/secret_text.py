"""Secrets that open something: 256 random bits each, of which only the hash is stored.

Nobody can guess 256 bits, so a plain SHA-256 is enough: it needs neither salt nor time, as the hash
of a password would. A secret is looked up by its hash. How long that takes says something about
hashes at most, and nothing about secrets.
"""

import hmac
import secrets
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Final

TOKEN_PREFIX: Final = "pdr_"  # noqa: S105  by which people and scanners recognise a leaked one
LONGEST: Final = 128  # characters; what is longer is no secret of ours, and is not hashed

_BYTES: Final = 32


def new_secret() -> str:
    """Return a secret of 256 bits."""
    return secrets.token_urlsafe(_BYTES)


def new_token() -> str:
    """Return a token of 256 bits, with the prefix by which it is recognised."""
    return f"{TOKEN_PREFIX}{new_secret()}"


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret."""
    return sha256(secret.encode()).hexdigest()


def same_secret(one: str, other: str) -> bool:
    """Whether two secrets are equal; takes the same time wherever they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def csrf_token(secret: str) -> str:
    """Return the token that belongs to the secret of a session, and does not reveal it."""
    made = hmac.new(secret.encode(), b"perdure csrf", "sha256").digest()
    return urlsafe_b64encode(made).rstrip(b"=").decode()
