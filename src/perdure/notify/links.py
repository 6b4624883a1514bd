"""Tokens of links: random, signed, and over in time."""

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from itsdangerous import BadData, TimestampSigner, URLSafeTimedSerializer

from perdure.base.secret import Secret
from perdure.jobs.approval import CODE_DIGITS

RANDOM_BYTES: Final = 32
LONGEST_TOKEN: Final = 300
FEWEST_KEY_BYTES: Final = 32


class LinkTokens:
    """Makes and reads the tokens of links."""

    def __init__(self, keys: tuple[Secret[str], ...], lives: float = 24 * 3600.0) -> None:
        """Take the keys.

        Args:
            keys: The newest last signs; all of them are believed, so that keys can be changed.
            lives: Seconds for which a token is believed.

        Raises:
            ValueError: A key is too short to be one.
        """
        if not keys or any(len(key.reveal().encode()) < FEWEST_KEY_BYTES for key in keys):
            raise ValueError(
                f"a key to sign links has at least {FEWEST_KEY_BYTES} bytes: "
                "make one with `python -c 'import secrets; print(secrets.token_urlsafe(32))'`"
            )
        self._keys = [key.reveal() for key in keys]
        self.lives = lives

    def make(self, now: float) -> str:
        """Make a token that nobody can guess."""
        return str(self._signer(now).dumps(secrets.token_urlsafe(RANDOM_BYTES)))

    def is_signed(self, token: str) -> bool:
        """Tell whether we made a token, whenever that was."""
        return self._is_good(token, 0.0)

    def is_ours(self, token: str, now: float) -> bool:
        """Tell whether we made a token, and not too long ago."""
        return self._is_good(token, now, int(self.lives))

    def _is_good(self, token: str, now: float, max_age: int | None = None) -> bool:
        if len(token) > LONGEST_TOKEN:
            return False
        try:
            self._signer(now).loads(token, max_age=max_age)
        except BadData:
            return False
        return True

    def _signer(self, now: float) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(
            self._keys, salt="perdure.link", signer=_signer_at(lambda: int(now))
        )


def _signer_at(clock: Callable[[], int]) -> type[TimestampSigner]:
    """Give a signer whose time is ours, not the machine's."""

    class Signer(TimestampSigner):
        default_digest_method = staticmethod(sha256)

        def get_timestamp(self) -> int:
            return clock()

    return Signer


def new_code() -> str:
    """Draw a code for a person to type."""
    return "".join(secrets.choice("0123456789") for _ in range(CODE_DIGITS))
