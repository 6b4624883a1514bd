"""An optional hint when to claim: workers take turns with a lock in Redis.

A large fleet that polls one database overloads it at every submission. With the hint, workers claim
one after the other. The lock decides nothing: a worker that gets no turn in time claims anyway, and
so do all workers while Redis is slow, empty, wrong or down. Only the leases in the store decide who
owns which job, so no fault of Redis can do harm.
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

# The longest turn, in milliseconds: the most that a worker which dies in its turn delays others.
_TURN_MS = 500

# How long a worker waits for its turn, or for any answer, before it continues without one.
_PATIENCE = 0.05

# The pause between two attempts to get the lock.
_PAUSE = 0.005

# How long a Redis that did not answer is not asked again.
_SILENCE = 5.0

# Only the holder may extend a turn or end it.
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


class RedisHint:
    """The lock with which the workers of one store take turns."""

    def __init__(self, url: str, name: str) -> None:
        """Describe the lock; nothing is connected yet.

        Args:
            url: `redis://…`, `rediss://…` or `unix://…`.
            name: The key of the lock: one for all workers on the same store.

        Raises:
            DefinitionError: The Redis client is not installed, or the URL is invalid.
        """
        try:
            redis = importlib.import_module("redis.asyncio")
        except ImportError:
            raise DefinitionError(
                "a hint needs the Redis client: pip install 'perdure[redis]'"
            ) from None
        try:
            # The client need not retry: the lock is requested repeatedly anyway.
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
    async def turn(self) -> AsyncGenerator["ClaimTurn", None]:
        """Wait briefly for a turn; yields it, whether the worker got one or not."""
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
        """Run a script for a token; return whether it succeeded, False if there is no answer."""
        return bool(await self._do(self._redis.eval(script, 1, self._name, token, *more)))

    async def _do(self, command: Any) -> object:
        """Return the answer to a command, or None if there is none in time."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await command
        except Exception as error:  # noqa: BLE001 - no fault of Redis may do harm here
            self._silent_until = asyncio.get_running_loop().time() + _SILENCE
            _log.warning("Redis is unavailable: %s; claiming without the hint", error)
            return None

    async def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_PATIENCE):
                await self._redis.aclose()


class ClaimTurn:
    """A turn that a worker has, or believes it has; without a token it has none."""

    def __init__(self, hint: RedisHint, token: str | None) -> None:
        self._hint = hint
        self.token = token

    async def renew(self) -> None:
        """Extend the turn; if it has passed to another worker, continue without one."""
        if self.token is not None and not await self._hint.ask(_RENEW, self.token, _TURN_MS):
            self.token = None

    async def end(self) -> None:
        """Let the next worker have its turn."""
        if self.token is not None:
            await self._hint.ask(_RELEASE, self.token)
