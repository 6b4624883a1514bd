"""Searches: reads that may take long, which one tenant must not fill the store with.

A verb that reads a bounded part of an index is answered at once, whatever else is under way. Those
are named in `BOUNDED`; every other one is a search, so that a new verb cannot be forgotten.
Searches have database threads of their own (`Store.search`) and a time limit. One of each tenant
runs at a time. Others wait for their turn, the tenants one after the other, and too many are
refused.

A search keeps its place until its thread is done with it: to hang up and ask again gains nothing.
"""

import asyncio
from collections import OrderedDict, deque
from typing import Any, Final, cast

from perdure.base.errors import RequestRefused
from perdure.jobs.model import JobQuery
from perdure.jobs.query_cost import is_bounded
from perdure.store.db_thread import Search, VerbCall
from perdure.store.store import SEARCHERS, Store, Verb

# Each finds what it reads by a key or in the order of an index, and reads a bounded part of it.
BOUNDED: Final = frozenset(
    {
        *("job", "listed_job", "listed_jobs_of", "whole_job", "outcomes", "journal_page"),
        *("payload", "events", "has_event", "trace", "output", "topics", "budget"),
        *("approval", "approval_of_step", "effect_by_key", "effect_of_business", "entry_by_key"),
        *("is_being_undone", "fork_refusal", "schedules", "saved_views", "error_marks", "tokens"),
        *("audit_newest", "audit_tenants", "fleet", "workers", "running_of", "definitions"),
        *("command_state", "_server_time"),
    }
)
_BY_QUERY: Final = frozenset({"jobs", "listed_jobs"})
_AGAIN: Final = 1.0  # seconds


class Searches:
    """The searches of all tenants that are under way, and those that wait."""

    def __init__(self, of_one: int, seconds: float, at_once: int = SEARCHERS) -> None:
        """Begin without any.

        Args:
            of_one: How many a tenant has at once; one of them runs.
            seconds: How long each may take.
            at_once: How many run at once.
        """
        self._of_one = of_one
        self._seconds = seconds
        self._free = at_once
        self._running: set[str] = set()
        # Who waits, those who have waited longest since their last turn first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, verbs: Store, who: str, call: VerbCall) -> Any:
        """Run a verb when it is the turn of whoever asks.

        Raises:
            RequestRefused: They have too many searches already.
            QueryTooSlow: It took too long.
        """
        await self._turn(who)
        search = Search(self._seconds, lambda: self._over(who))
        try:
            return await verbs.search(call, search)
        finally:
            if not search.is_begun:  # else its thread says when it is over
                self._over(who)

    async def _turn(self, who: str) -> None:
        waiting = self._waiting.get(who, ())
        if len(waiting) + (who in self._running) >= self._of_one:
            text = f"{self._of_one} searches of yours are under way: ask again when one is over"
            raise RequestRefused(429, "too_many_searches", text, retry=_AGAIN)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(who, turn)
            else:  # it had just got its turn
                self._over(who)
            raise

    def _leave(self, who: str, turn: "asyncio.Future[None]") -> None:
        waiting = self._waiting[who]
        waiting.remove(turn)
        if not waiting:
            del self._waiting[who]

    def _over(self, who: str) -> None:
        self._running.discard(who)
        self._free += 1
        if who in self._waiting:
            self._waiting.move_to_end(who)  # it has just had its turn
        self._next()

    def _next(self) -> None:
        """Give their turn to as many as can run now."""
        for who in [each for each in self._waiting if each not in self._running]:
            if not self._free:
                return
            waiting = self._waiting.pop(who)
            waiting.popleft().set_result(None)
            if waiting:
                self._waiting[who] = waiting
            self._running.add(who)
            self._free -= 1


def searching_verbs(verbs: Store, searches: Searches, who: str) -> Store:
    """Return the verbs of a store, such that what may take long waits for its turn."""
    return cast("Store", _SearchingVerbs(verbs, searches, who))


class _SearchingVerbs:
    def __init__(self, verbs: Store, searches: Searches, who: str) -> None:
        self._verbs = verbs
        self._searches = searches
        self._who = who

    def __getattr__(self, name: str) -> Any:
        verb, found = getattr(Store, name, None), getattr(self._verbs, name)
        if not isinstance(verb, Verb) or not verb.reads or name in BOUNDED:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            if name in _BY_QUERY and is_bounded(cast("JobQuery", args[0])):
                return await found(*args, **kwargs)
            asked = VerbCall(verb.function, args, kwargs)
            return await self._searches.run(self._verbs, self._who, asked)

        return call
