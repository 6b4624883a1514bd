"""Tokens of links: random, signed, and valid for a limited time.

The signature keeps guesses away from the store: a request without a token of ours costs no query.
It decides nothing else. What a token stands for is a row in the store, found by the token's hash.
"""

import secrets
from hashlib import sha256
from typing import Any, Final

from perdure.base.extra import extra
from perdure.base.secret import Secret
from perdure.jobs.approval import CODE_DIGITS

with extra("mail", "a link in a mail"):
    from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

RANDOM_BYTES: Final = 32
LONGEST_TOKEN: Final = 300
FEWEST_KEY_BYTES: Final = 32


class LinkTokens:
    """Makes and checks the tokens of links."""

    def __init__(self, keys: tuple[Secret[str], ...], ttl: float = 24 * 3600.0) -> None:
        """Take the keys.

        Args:
            keys: The last one signs; all of them are accepted, so that keys can be rotated.
            ttl: Seconds for which a token is valid.

        Raises:
            ValueError: A key is too short.
        """
        if not keys or any(len(key.reveal().encode()) < FEWEST_KEY_BYTES for key in keys):
            raise ValueError(
                f"a key to sign links has at least {FEWEST_KEY_BYTES} bytes: "
                "make one with `python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
            )
        self._keys = [key.reveal() for key in keys]
        self._checker = self._serializer(0.0)
        self.ttl = ttl

    def make(self, now: float) -> str:
        """Return a token that nobody can guess."""
        return str(self._serializer(now).dumps(secrets.token_urlsafe(RANDOM_BYTES)))

    def made_at(self, token: str) -> float | None:
        """Return when a token was created; None if we did not create it."""
        if len(token) > LONGEST_TOKEN:
            return None
        try:
            _, made = self._checker.loads(token, return_timestamp=True)
        except BadData:
            return None
        return made.timestamp()

    def is_current(self, made_at: float, now: float) -> bool:
        """Whether a token created at this time is still valid; one from the future never is."""
        return 0 <= int(now) - made_at <= int(self.ttl)

    def _serializer(self, now: float) -> URLSafeTimedSerializer:
        options = {"now": int(now)}
        return URLSafeTimedSerializer(
            self._keys, salt="perdure.link", signer=_Signer, signer_kwargs=options
        )


class _Signer(TimestampSigner):
    """Signs by the store's clock instead of the machine's."""

    default_digest_method = staticmethod(sha256)

    def __init__(self, *args: Any, now: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._now = now

    def get_timestamp(self) -> int:
        return self._now


def new_code() -> str:
    """Return a random code for a person to type."""
    return "".join(secrets.choice("0123456789") for _ in range(CODE_DIGITS))
