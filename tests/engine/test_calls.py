"""Calls are values: awaited in a job they are durable, and anywhere else they say what to write."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec import Struct
from pydantic import BaseModel, Field

import perdure
from perdure import JobContext, Retry, StepContext, SyncStepContext
from perdure.app import App
from perdure.base.errors import JobFailed, NotInJob, OperationCancelled
from perdure.engine.journal.run import branch
from perdure.engine.run.context import First
from perdure.jobs.state import JobState, StepState
from tests.support.engine import durable, until


@durable
async def test_a_step_is_called_like_a_function(app: App) -> None:
    @app.step
    async def load(page: int) -> int:
        return page * 100

    @app.step
    def pack(ctx: SyncStepContext, total: int, *, label: str = "t") -> str:
        return f"{label}{total} at attempt {ctx.attempt}"

    @app.job
    async def migrate(pages: int) -> str:
        total = sum([await load(page) for page in range(pages)])
        return await pack(total, label="T")

    async with app.running():
        handle = await app.submit(migrate(3))
        assert await handle.result("10s") == "T300 at attempt 1"
    assert [entry.id for entry in await handle.journal()] == [
        "load#1",
        "load#2",
        "load#3",
        "pack#1",
    ]


@durable
async def test_a_call_outside_of_a_job_says_what_to_write(app: App) -> None:
    @app.step
    async def load(page: int) -> int:
        return page

    @app.job
    async def migrate(pages: int) -> int:
        return await load(pages)

    with pytest.raises(NotInJob, match=r"load\(3\) was awaited outside .*`load\.fn\(…\)`"):
        await load(3)
    with pytest.raises(NotInJob, match=r"migrate\(8\) .*`await app\.run\(migrate\(…\)\)`"):
        await migrate(8)
    assert await load.fn(3) == 3


@durable
async def test_a_call_in_a_step_fails_it_at_once_and_says_what_to_write(app: App) -> None:
    ran: list[int] = []

    @app.step
    async def inner() -> None: ...

    @app.step
    async def outer() -> None:
        ran.append(1)
        await inner()

    @app.job
    async def job() -> None:
        await outer()

    async with app.running():
        with pytest.raises(JobFailed, match=r"inner\(\) was awaited inside the step outer#1"):
            await app.run(job())
    assert ran == [1]


async def _in_a_group(call: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(call)


@durable
async def test_a_call_that_is_given_to_asyncio_says_to_write_gather(app: App) -> None:
    untyped: Any = asyncio
    ways: dict[str, Callable[[Any], Any]] = {
        "gather": lambda call: untyped.gather(call, call),
        "wait": lambda call: untyped.wait([call]),
        "as_completed": lambda call: next(iter(untyped.as_completed([call]))),
        "create_task": asyncio.create_task,
        "TaskGroup": _in_a_group,
        "ensure_future": asyncio.ensure_future,
        "shield": asyncio.shield,
    }

    @app.step
    async def load(page: int) -> int:
        return page

    @app.job
    async def job(way: str) -> None:
        await ways[way](load(3))

    async with app.running():
        for way in ways:
            with pytest.raises(JobFailed, match=r"`await ctx\.gather\(load\(3\), …\)`"):
                await app.run(job(way))


@durable
async def test_a_call_that_asyncio_runs_outside_of_a_job_says_so(app: App) -> None:
    @app.job
    async def job() -> None: ...

    with pytest.raises(NotInJob, match=r"`await app\.run\(job\(…\)\)`"):
        await asyncio.create_task(cast("Any", job()))
    with pytest.raises(asyncio.CancelledError):  # as of a coroutine that has not begun
        cast("Any", job()).throw(asyncio.CancelledError())


@durable
async def test_a_thread_of_a_step_is_not_in_the_job_either(app: App) -> None:
    @app.step
    async def inner() -> None: ...

    @app.step(isolation="thread", retry=Retry(attempts=1))
    async def outer() -> None:
        await inner()

    @app.job
    async def job() -> None:
        await outer()

    async with app.running():
        with pytest.raises(JobFailed, match="inside the step outer#1"):
            await app.run(job())


@durable
async def test_a_job_awaited_in_a_job_is_its_child(app: App) -> None:
    @app.job
    async def inner(number: int) -> int:
        return number + 1

    @app.job
    async def outer(ctx: JobContext) -> list[int]:
        return [await inner(1), await ctx.child(inner(2).options(id="second", priority=7))]

    async with app.running():
        handle = await app.submit(outer())
        assert await handle.result("10s") == [2, 3]
    found = await app.find_jobs(perdure.JobQuery(parent=handle.id))
    assert sorted(each.priority for each in found) == [0, 7]
    assert [entry.id for entry in await handle.journal()] == ["child:inner#1", "child:inner#second"]


@durable
async def test_options_of_a_call_hold_for_that_call(app: App) -> None:
    attempts: list[str] = []

    @app.step(retry=Retry(attempts=1))
    async def flaky(name: str) -> None:
        attempts.append(name)
        raise ValueError(name)

    @app.job
    async def job(ctx: JobContext) -> None:
        twice = flaky("b").options(retry=Retry(attempts=2, initial_delay=0), id="page 3")
        await ctx.gather(flaky("a"), twice, return_exceptions=True)

    async with app.running():
        handle = await app.submit(job())
        await handle.result("10s")
    assert sorted(attempts) == ["a", "b", "b"]
    assert [entry.id for entry in await handle.journal()] == ["flaky#1", "flaky#page 3"]


@durable
async def test_results_that_are_gathered_are_a_tuple(app: App) -> None:
    @app.step
    async def check(name: str) -> bool:
        return name == "a"

    @app.step
    async def count(name: str) -> int:
        return len(name)

    @app.job
    async def job(ctx: JobContext) -> tuple[bool, int]:
        passed, length = await ctx.gather(check("a"), count("bb"))
        return passed, length

    async with app.running():
        assert await app.run(job()) == (True, 2)


@durable
async def test_the_context_of_a_job_can_be_had_anywhere_in_its_code(app: App) -> None:
    async def helper() -> str:
        return perdure.current_job().job_id

    @app.step
    async def step() -> str:
        try:
            perdure.current_job()
        except NotInJob as error:
            return str(error)
        return "in a job"

    @app.job
    async def job() -> tuple[str, str]:
        return await helper(), await step()

    async with app.running():
        handle = await app.submit(job())
        id, told = await handle.result("10s")
    assert id == handle.id
    assert "inside the step step#1" in told
    with pytest.raises(NotInJob):
        perdure.current_job()


def test_a_call_that_a_job_never_awaits_is_warned_of(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @durable
    async def case(app: App) -> None:
        @app.step
        async def mail(to: str) -> None: ...

        @app.job
        async def job() -> None:
            mail("kim")

        async with app.running():
            await app.run(job())

    with caplog.at_level(logging.WARNING, "perdure.worker"):
        case(url)
    assert "mail('kim') was never awaited, so nothing of it was done" in caplog.text


# The first of several


class Slow:
    """A step that ends only when it is told to."""

    def __init__(self, app: App) -> None:
        self.gate = asyncio.Event()
        self.began = asyncio.Event()
        self.undone: list[str] = []
        slow = self

        @app.step(retry=Retry(attempts=1))
        async def wait(name: str) -> str:
            slow.began.set()
            await slow.gate.wait()
            return name

        @wait.compensate
        async def undo(name: str, output: str | None) -> None:
            slow.undone.append(name)

        self.wait = wait


@durable
async def test_the_first_that_ends_wins_and_the_others_are_cancelled(app: App) -> None:
    slow = Slow(app)

    @app.step
    async def quick() -> str:
        await slow.began.wait()
        return "quick"

    @app.job
    async def inner(ctx: JobContext) -> None:
        await ctx.receive("never")

    @app.job
    async def job(ctx: JobContext) -> tuple[int, str]:
        found = await ctx.first(
            slow.wait("a"), ctx.sleep("8h"), ctx.receive("never", kind=str), inner(), quick()
        )
        assert isinstance(found.value, str)
        return found.index, found.value

    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("20s") == (4, "quick")
    states = {entry.id: entry.state for entry in await handle.journal()}
    assert states["wait#1"] is StepState.FAILED
    assert states["sleep#1"] is states["receive:never#1"] is StepState.SKIPPED
    (child,) = await app.find_jobs(perdure.JobQuery(parent=handle.id))
    async with app.running():
        await until(app, child.id, JobState.CANCELLED)
    assert slow.undone == []


@durable
async def test_a_step_that_lost_and_had_begun_is_undone_if_the_job_fails(app: App) -> None:
    slow = Slow(app)

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.first(slow.wait("a"), ctx.receive("go"))
        raise ValueError("no")

    async with app.running():
        handle = await app.submit(job())
        await asyncio.wait_for(slow.began.wait(), 20)
        await handle.send("go")
        await until(app, handle.id, JobState.COMPENSATED)
    assert slow.undone == ["a"]


@durable
async def test_a_child_that_is_cancelled_before_it_begins_leaves_nothing_to_undo(app: App) -> None:
    slow = Slow(app)
    slow.gate.set()

    @app.job
    async def inner() -> None: ...

    @app.job
    async def job(ctx: JobContext) -> None:
        await slow.wait("a")
        child = ctx.child(inner())
        child.cancel()
        with pytest.raises(OperationCancelled):
            await child
        raise ValueError("no")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.COMPENSATED)
    assert "child:inner#1" not in {entry.id for entry in await handle.journal()}


@durable
async def test_who_won_is_the_same_after_a_restart(app: App) -> None:
    slow, runs = Slow(app), list[int]()

    @app.job
    async def job(ctx: JobContext) -> list[Any]:
        runs.append(1)
        late = ctx.start(slow.wait("late"))
        first = await ctx.first(late, ctx.receive("go", kind=str), losers="continue")
        await ctx.receive("more")
        return [first.index, first.value, await late]

    handle = await app.submit(job())
    async with app.running():
        await asyncio.wait_for(slow.began.wait(), 20)
        await handle.send("go", "message")
        while not any(entry.name == "first" for entry in await handle.journal()):
            await perdure.process.sleep("2ms")
        slow.gate.set()
        await until(app, handle.id, JobState.WAITING)
    async with app.running():
        await handle.send("more")
        assert await handle.result("20s") == [1, "message", "late"]
    assert len(runs) > 1


@durable
async def test_a_cancel_while_the_first_is_awaited_ends_the_job(app: App) -> None:
    slow = Slow(app)

    @app.job
    async def job(ctx: JobContext) -> First[str | None]:
        return await ctx.first(slow.wait("a"), ctx.sleep("8h"))

    async with app.running():
        handle = await app.submit(job())
        await asyncio.wait_for(slow.began.wait(), 20)
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)


# Branches


@durable
async def test_concurrent_branches_with_a_scope_each_never_drift(app: App) -> None:
    @app.step
    async def note(name: str) -> str:
        return name

    orders = [["a", "b"], ["b", "a"]]  # of the second run: as if the branches raced

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        async def branch(name: str) -> str:
            with ctx.scope(name):
                return await note(f"{name}1") + await note(f"{name}2")

        order = orders.pop(0) if len(orders) > 1 else orders[0]
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(branch(name)) for name in order}
        await ctx.receive("go")
        return sorted(task.result() for task in tasks.values())

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == ["a1a2", "b1b2"]
    ids = {entry.id for entry in await handle.journal()}
    assert {"a/note#1", "a/note#2", "b/note#1", "b/note#2"} < ids


@durable
async def test_a_branch_cannot_be_open_twice(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> list[str]:
        told: list[str] = []
        for key in ("a", "x/y", ""):
            try:
                with ctx.scope("a"), ctx.scope("nested"):
                    pass
                with ctx.scope("a"):
                    with ctx.scope("b"):
                        pass
                    raise_twice(ctx, key)
            except ValueError as error:
                told.append(str(error))
        return told

    def raise_twice(ctx: JobContext, key: str) -> None:
        token = branch.set("")
        try:
            with ctx.scope(key):
                pass
        finally:
            branch.reset(token)

    async with app.running():
        told = await app.run(job())
    assert "two branches of the job are 'a' at the same time" in told[0]
    assert all("cannot be the key of a scope" in each for each in told[1:])


# Closures


@durable
async def test_a_closure_is_a_step(app: App) -> None:
    ran: list[str] = []

    @app.job
    async def job(ctx: JobContext, url: str) -> list[Any]:
        async def fetch() -> dict[str, str]:
            ran.append(url)
            if len(ran) == 1:
                raise ConnectionError("once")
            return {"url": url}

        def plain(step: SyncStepContext) -> int:
            return step.attempt

        async def with_context(ctx: StepContext) -> str:
            return ctx.step_id

        page = await ctx.call("fetch", fetch, input={"url": url}, retry=Retry(initial_delay=0))
        both = await ctx.gather(
            ctx.call("plain", plain), ctx.call("named", with_context, key="the one")
        )
        await ctx.receive("go")
        return [page, *both]

    async with app.running():
        handle = await app.submit(job("u"))
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        assert await handle.result("10s") == [{"url": "u"}, 1, "call:named#the one"]
    assert ran == ["u", "u"]
    journal = await handle.journal()
    assert journal[0].name == "call:fetch"
    assert journal[0].input == b'{"url":"u"}'


@durable
async def test_a_job_with_closures_is_undone_without_them(app: App) -> None:
    undone: list[str] = []

    @app.step
    async def book() -> str:
        return "room"

    @book.compensate
    async def unbook(output: str | None) -> None:
        undone.append(str(output))

    @app.job
    async def job(ctx: JobContext) -> None:
        await book()
        await ctx.call("think", lambda: 3)
        raise ValueError("no")

    async with app.running():
        handle = await app.submit(job())
        await until(app, handle.id, JobState.COMPENSATED)
    assert undone == ["room"]


# Journals that begin anew


@durable
async def test_a_job_can_begin_anew_with_an_empty_journal(app: App) -> None:
    calls: list[str] = []

    @app.step
    async def pay(ctx: StepContext, number: int) -> str:
        return await ctx.effect("payment", lambda key: calls.append(key) or key, target="card")

    @app.job
    async def loop(ctx: JobContext, number: int, total: int) -> list[int]:
        await pay(number)
        if number < total:
            await ctx.continue_as(loop(number + 1, total))
        return [number, total]

    async with app.running():
        handle = await app.submit(loop(1, 4), key="endless")
        assert await handle.result("20s") == [4, 4]
    assert len(set(calls)) == len(calls) == 4
    assert [entry.id for entry in await handle.journal()] == ["continued#3", "/3/pay#1"]
    assert len(await handle.effects()) == 4
    again = await app.submit(loop(1, 4), key="endless")
    assert (again.id, again.new) == (handle.id, False)


@durable
async def test_a_branch_is_never_taken_for_a_later_journal(app: App) -> None:
    calls: list[str] = []

    @app.step
    async def pay(ctx: StepContext) -> str:
        return await ctx.effect("payment", lambda key: calls.append(key) or key, target="card")

    @app.job
    async def loop(ctx: JobContext, again: bool) -> None:
        if again:
            with ctx.scope("1"):
                await pay()
            await ctx.continue_as(loop(again=False))
        await pay()

    async with app.running():
        await app.run(loop(again=True))
    assert len(set(calls)) == len(calls) == 2


@durable
async def test_what_has_not_ended_keeps_a_job_from_beginning_anew(app: App) -> None:
    slow = Slow(app)

    @app.job
    async def other() -> None: ...

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        told: list[str] = []
        late = ctx.start(slow.wait("a"))
        for call in (job(), other()):
            try:
                await ctx.continue_as(call)
            except (perdure.errors.JobError, TypeError) as error:
                told.append(str(error))
        slow.gate.set()
        await late
        return told

    async with app.running():
        told = await app.run(job())
    assert "wait#1 has not ended: await it first" in told[0]
    assert "takes a call of the same job, job(…)" in told[1]


@durable
async def test_a_cancel_comes_before_a_new_beginning(app: App) -> None:
    rounds = asyncio.Event()

    @app.step
    async def turn(number: int) -> None:
        if number == 20:
            rounds.set()

    @app.job
    async def loop(ctx: JobContext, number: int) -> None:
        await turn(number)
        await ctx.continue_as(loop(number + 1))

    async with app.running():
        handle = await app.submit(loop(1))
        await asyncio.wait_for(rounds.wait(), 30)
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)


@durable
async def test_a_question_can_have_a_key(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> tuple[str, ...]:
        approved = await ctx.approve("Ship it?", key="ship")
        return approved.by

    async with app.running():
        handle = await app.submit(job(), user="lee")
        await until(app, handle.id, JobState.WAITING)
        (asked,) = await app.approvals()
        assert asked.step == "approve#ship"
        await handle.cancel()


# Results of effects


class Receipt(Struct):
    number: int


@durable
async def test_an_effect_returns_the_type_that_its_call_declares(app: App) -> None:
    calls: list[str] = []

    def charge(key: str) -> Receipt:
        calls.append(key)
        return Receipt(len(calls))

    def unknown(key: str) -> "Nowhere":  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]
        return {"key": key}

    @app.step(retry=Retry(attempts=2, initial_delay=0))
    async def pay(ctx: StepContext) -> list[Any]:
        receipt = await ctx.effect("payment", charge, target="card", undo=None)
        plain = await ctx.effect("note", cast("Any", unknown), target="book", undo=None)
        if ctx.attempt == 1:
            raise ConnectionError("after both")
        return [receipt.number, sorted(plain)]

    @app.job
    async def job() -> list[Any]:
        return await pay()

    async with app.running():
        assert await app.run(job()) == [1, ["key"]]
    assert len(calls) == 1


@durable
async def test_a_call_in_another_thread_fails_instead_of_waiting_for_ever(app: App) -> None:
    @app.job
    async def work(ctx: JobContext) -> int:
        async def one() -> int:
            return 1

        async def elsewhere() -> int:
            return await ctx.call("one", one)

        return await asyncio.to_thread(lambda: asyncio.run(elsewhere()))

    with pytest.raises(JobFailed, match="is called in another thread"):
        await app.run(work())


# Values at the boundary


class Account(BaseModel):
    user_id: int = Field(alias="userId")
    friends: list["Account"] = Field(default=[], validation_alias="peers")


@durable
async def test_models_with_aliases_go_through_steps_children_and_results(app: App) -> None:
    @app.step
    async def befriend(account: Account, others: list[Account]) -> Account:
        return account.model_copy(update={"friends": others})

    @app.job
    async def child(account: Account) -> list[Account]:
        return [account]

    @app.job
    async def job(ctx: JobContext, account: Account) -> dict[str, Account]:
        found = await child(account)
        await ctx.receive("go")  # and once more, from the journal
        return {"one": await befriend(account, [*found, *await child(account)])}

    one = Account(userId=1)
    async with app.running():
        handle = await app.submit(job(one))
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")
        found = await handle.result("20s")
    assert found == {"one": one.model_copy(update={"friends": [one, one]})}
    assert await handle.status() is JobState.COMPLETED


@durable
async def test_what_gather_returns_can_be_the_list_that_a_job_declares(app: App) -> None:
    sums: list[list[int]] = []

    @app.step
    async def load(page: int) -> int:
        return page

    @app.step
    async def add(pages: list[int]) -> int:
        sums.append(list(pages))
        return sum(pages)

    @app.job
    async def job(ctx: JobContext) -> list[int]:
        pages: Any = await ctx.gather(load(1), load(2))
        await add(pages)
        return pages

    async with app.running():
        assert await app.run(job()) == [1, 2]
    assert sums == [[1, 2]]
