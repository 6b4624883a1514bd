"""Shares of clients, and the turns of searches, without a store."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from perdure.base.errors import RequestRefused
from perdure.store.db_thread import Search, VerbCall
from perdure.store.store import Store
from perdure.web.access.searches import Searches
from perdure.web.access.shares import Shares

CALL = VerbCall(list, (), {})


class Threads:
    """Stands for the database: each search is under way until `end` is called for it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._running: dict[str, tuple[asyncio.Future[None], Callable[[], None]]] = {}

    def of(self, who: str) -> Store:
        return cast("Store", _Verbs(self, who))

    async def search(self, who: str, search: Search) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun.append(who)
        self._running[who] = future, search.over
        search.is_begun = True
        await future

    async def end(self, who: str) -> None:
        future, over = self._running.pop(who)
        over()
        if not future.done():
            future.set_result(None)
        await turns()


class _Verbs:
    def __init__(self, threads: Threads, who: str) -> None:
        self._threads, self._who = threads, who

    async def search(self, _: Any, search: Search) -> None:
        await self._threads.search(self._who, search)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def asked(searches: Searches, threads: Threads, *who: str) -> list["asyncio.Task[Any]"]:
    tasks = [asyncio.create_task(searches.run(threads.of(each), each, CALL)) for each in who]
    await turns()
    return tasks


async def test_one_search_of_a_tenant_runs_and_tenants_take_turns() -> None:
    searches, threads = Searches(5, 1.0, at_once=2), Threads()
    tasks = await asked(searches, threads, "a", "a", "a", "b", "b", "c")
    assert threads.begun == ["a", "b"]
    await threads.end("a")
    assert threads.begun == ["a", "b", "c"]  # not again a, which has just had its turn
    await threads.end("b")
    assert threads.begun == ["a", "b", "c", "a"]
    await threads.end("c")
    assert threads.begun == ["a", "b", "c", "a", "b"]
    for each in ("b", "a", "a"):
        await threads.end(each)
    await asyncio.gather(*tasks)
    assert threads.begun == ["a", "b", "c", "a", "b", "a"]


async def test_who_waits_and_is_cancelled_leaves_the_turn_to_others() -> None:
    searches, threads = Searches(5, 1.0, at_once=1), Threads()
    first, second, third = await asked(searches, threads, "a", "b", "c")
    second.cancel()
    await turns()
    await threads.end("a")
    assert threads.begun == ["a", "c"]
    await threads.end("c")
    await asyncio.gather(first, third)
    (again,) = await asked(searches, threads, "b")
    await threads.end("b")
    await again


async def test_who_is_cancelled_with_the_turn_just_given_passes_it_on() -> None:
    searches, threads = Searches(5, 1.0, at_once=1), Threads()
    first, second = await asked(searches, threads, "a", "b")
    third = (await asked(searches, threads, "c"))[0]
    ended = asyncio.create_task(threads.end("a"))
    await asyncio.sleep(0)  # the turn is given to b, which has not run since
    second.cancel()
    await asyncio.gather(ended, first)
    assert threads.begun == ["a", "c"]
    await threads.end("c")
    await third


async def test_a_search_that_was_given_up_keeps_its_place_until_its_thread_is_done() -> None:
    searches, threads = Searches(1, 1.0), Threads()
    (task,) = await asked(searches, threads, "a")
    task.cancel()
    await turns()
    with pytest.raises(RequestRefused) as refused:
        await searches.run(threads.of("a"), "a", CALL)
    assert (refused.value.status, refused.value.code) == (429, "too_many_searches")
    await threads.end("a")
    (again,) = await asked(searches, threads, "a")
    await threads.end("a")
    await again


def test_one_client_holds_a_quarter_and_all_together_no_more_than_there_is() -> None:
    shares = Shares(8, "things")
    for who in "abcd":
        shares.take(who, 2)
        with pytest.raises(RequestRefused):
            shares.take(who)
    with pytest.raises(RequestRefused):
        shares.take("e")
    shares.give_back("a", 2)
    shares.take("e", 2)


def test_what_one_client_may_hold_in_any_case_is_not_less() -> None:
    Shares(8, "things", at_least=5).take("a", 5)
