"""A hint when to claim: workers take turns by a lock in Redis, so that they do not crowd the store.

It decides nothing. Who gets no turn in time claims all the same, and so does everybody
while Redis is slow, empty, wrong or away: the leases in the store say who owns what.
"""

import asyncio
import contextlib
import importlib
import logging
import secrets
from collections.abc import AsyncGenerator
from typing import Any

from perdure.base.errors import DefinitionError
from perdure.base.retry import pause
from perdure.base.secret import without_secrets

_log = logging.getLogger("perdure.worker")

# How long a turn lasts at most, in milliseconds: who dies in it holds nobody up for longer.
_TURN_MS = 500

# So long a worker waits for its turn, or for any answer, before it goes on without.
_PATIENCE = 0.05

# How long to wait before the lock is tried again.
_PAUSE = 0.005

# A Redis that did not answer is not asked again for so long.
_SILENCE = 5.0

# Only who holds the turn may prolong it or end it.
_RENEW = """
if redis.call("get", KEYS[1]) == ARGV[1] then
  return redis.call("pexpire", KEYS[1], ARGV[2])
end
return 0
"""
_RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then
  return redis.call("del", KEYS[1])
end
return 0
"""


class ClaimTurn:
    """A turn that a worker has, or believes to have; without a token it has none."""

    def __init__(self, hint: "RedisHint", token: str | None) -> None:
        self._hint = hint
        self.token = token

    async def renew(self) -> None:
        """Prolong it; if it is another's by now, that does not matter either."""
        if self.token is not None and not await self._hint.ask(_RENEW, self.token, _TURN_MS):
            self.token = None

    async def end(self) -> None:
        """Let the next one have its turn."""
        if self.token is not None:
            await self._hint.ask(_RELEASE, self.token)


class RedisHint:
    """The lock of the claims of one store."""

    def __init__(self, url: str, name: str) -> None:
        """Describe it; nothing is connected yet.

        Args:
            url: `redis://…`, `rediss://…` or `unix://…`.
            name: The key of the lock: one for all workers on the same store.

        Raises:
            DefinitionError: The client of Redis is not installed, or the URL is none.
        """
        try:
            redis = importlib.import_module("redis.asyncio")
        except ImportError:
            raise DefinitionError(
                "a hint needs the client of Redis: pip install 'perdure[redis]'"
            ) from None
        try:
            # It is asked again and again anyway: the client itself need not.
            self._redis: Any = redis.from_url(
                url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE, retry=None
            )
        except ValueError as error:
            raise DefinitionError(
                f"invalid Redis URL {without_secrets(url)!r}: {without_secrets(str(error))}"
            ) from None
        self._name = name
        self._silent_until = 0.0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[ClaimTurn, None]:
        """Wait for a turn, but not for long; inside the block there may be one or not."""
        turn = ClaimTurn(self, await self._take())
        try:
            yield turn
        finally:
            await turn.end()

    async def _take(self) -> str | None:
        token, loop = secrets.token_hex(8), asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        while loop.time() < until and loop.time() >= self._silent_until:
            if await self._do(self._redis.set(self._name, token, nx=True, px=_TURN_MS)):
                return token
            await pause(_PAUSE)
        return None

    async def ask(self, script: str, token: str, *more: object) -> bool:
        """Run one of the scripts for a token; False also if there is no answer."""
        return bool(await self._do(self._redis.eval(script, 1, self._name, token, *more)))

    async def _do(self, command: Any) -> object:
        """Wait for an answer, and be content without one."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await command
        except Exception as error:  # noqa: BLE001 - whatever is wrong there must do no harm here
            self._silent_until = asyncio.get_running_loop().time() + _SILENCE
            _log.warning("the hint in Redis is not to be had: %s; claiming without", error)
            return None

    async def close(self) -> None:
        """Let the connections go."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_PATIENCE):
                await self._redis.aclose()
