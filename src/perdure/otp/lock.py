"""Locks by key: one holder at a time, first come first served, free when the holder dies."""

import asyncio
import types
from collections.abc import Generator, Hashable
from functools import partial
from typing import Any

from perdure.base.errors import NoProcess, ProcError
from perdure.base.pid import Pid
from perdure.process.current import current_waiter
from perdure.process.process import Process


class Turn:
    """A place in the line for one lock; the first in the line holds it."""

    __slots__ = ("holder", "key", "task", "waiter")

    def __init__(self, key: Hashable, holder: Pid) -> None:
        self.key = key
        self.holder = holder  # the process, which may take other locks in its tasks
        self.task = asyncio.current_task()
        self.waiter = current_waiter()


class Locks:
    """The lines of all keys that are locked now."""

    __slots__ = ("_lines", "_owner", "_turns")

    def __init__(self, owner: Pid) -> None:
        """Belong to a process: when it dies, who still waits is told."""
        self._owner = owner
        self._lines: dict[Hashable, dict[Turn, None]] = {}
        self._turns: dict[Pid, dict[Turn, None]] = {}

    @types.coroutine
    def take(self, key: Hashable, holder: Process) -> Generator[Any, None, Turn]:
        """Wait for the lock and hold it.

        Raises:
            ProcError: This code holds it already, and would wait for itself.
            NoProcess: Whom the locks belong to is dead.
        """
        turn = Turn(key, holder.pid)
        line = self._lines.setdefault(key, {})
        if any(other.task is turn.task for other in line):
            raise ProcError("this process already holds the lock: it would wait for itself")
        line[turn] = None
        self._turns_of(holder)[turn] = None
        try:
            while next(iter(line), None) is not turn:
                self._check_open()
                yield turn.waiter.pause()
            self._check_open()
        except BaseException:
            self.leave(turn)
            raise
        return turn

    def _turns_of(self, holder: Process) -> dict[Turn, None]:
        turns = self._turns.get(holder.pid)
        if turns is None:
            turns = self._turns[holder.pid] = {}
            # A process that was abandoned never leaves its blocks.
            holder.tie().at_death(partial(self._forget, holder.pid))
        return turns

    def _check_open(self) -> None:
        if self._owner.target is None:
            raise NoProcess(self._owner, "lock a key in it")

    def leave(self, turn: Turn) -> None:
        """Give the lock, or the place in the line, up; to do it twice does no harm."""
        line = self._lines.get(turn.key, {})
        if turn not in line:
            return
        del line[turn]
        self._turns[turn.holder].pop(turn, None)
        if line:
            next(iter(line)).waiter.wake()
        else:
            del self._lines[turn.key]

    def _forget(self, holder: Pid) -> None:
        """Free what a dead process held or waited for."""
        for turn in tuple(self._turns[holder]):
            self.leave(turn)
        del self._turns[holder]

    def wake_all(self) -> None:
        """Let everybody who waits look again: the owner dies."""
        for line in self._lines.values():
            for turn in line:
                turn.waiter.wake()
