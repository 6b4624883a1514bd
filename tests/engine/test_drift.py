"""Code that was changed while its jobs are under way: parked whichever way it ends, not undone."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.failure import Failure
from perdure.jobs.state import JobState
from tests.support.engine import QUICK, nodes, until

Code = Callable[["Scene", JobContext], Coroutine[Any, Any, Any]]


class Scene:
    """A job whose code can be changed while it waits for `go`, and what it did to the world."""

    def __init__(self, app: App, code: Code, **options: Any) -> None:
        self.app, self.code = app, code
        self.paid, self.undone = list[int](), list[int]()

        @app.step
        async def pay(usd: int) -> int:
            self.paid.append(usd)
            return usd

        @pay.compensate
        async def refund(ctx: StepContext, usd: int, output: int | None) -> None:
            self.undone.append(usd)

        @app.step(retry=Retry(attempts=1))
        async def fail() -> None:
            raise Permanent("declined")

        @app.job(on_cancel="compensate", **options)
        async def job(ctx: JobContext) -> Any:
            return await self.code(self, ctx)

        @app.job
        async def inner() -> int:
            return await pay(3)

        self.pay, self.fail, self.job, self.inner = pay, fail, job, inner

    async def began(self) -> Handle[Any]:
        """Return a job that has run as far as it can."""
        async with self.app.running():
            handle = await self.app.submit(self.job())
            await until(self.app, handle.id, JobState.WAITING)
        return handle

    async def parked(self, handle: Handle[Any]) -> str:
        """Wake the job; return why it is parked."""
        await handle.send("go")
        async with self.app.running():
            await until(self.app, handle.id, JobState.NEEDS_ATTENTION)
        return Failure.unpack((await handle.job()).error or b"").message


def played(url: str, test: Callable[[App], Coroutine[Any, Any, None]]) -> None:
    """Run a test with an app."""

    async def main() -> None:
        app = App(url, worker=QUICK)
        try:
            await test(app)
        finally:
            await app.close()

    perdure.run(main)


# One thing after the other


async def in_sequence(scene: Scene, ctx: JobContext) -> str:
    await scene.pay(1)
    await scene.pay(2)
    await ctx.receive("go")
    return "done"


async def divides(scene: Scene, ctx: JobContext) -> Any:
    return await scene.pay(1) / 0


async def raises_from(scene: Scene, ctx: JobContext) -> None:
    try:
        await divides(scene, ctx)
    except ZeroDivisionError as error:
        raise ValueError("no rate") from error


async def raises_at_once(scene: Scene, ctx: JobContext) -> None:
    raise KeyError("rate")


async def raises_cancelled(scene: Scene, ctx: JobContext) -> None:
    await scene.pay(1)
    raise asyncio.CancelledError


async def raises_in_group(scene: Scene, ctx: JobContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(divides(scene, ctx))


async def raises_in_gather(scene: Scene, ctx: JobContext) -> None:
    await asyncio.gather(divides(scene, ctx), ctx.receive("never"))


async def raises_beside_new(scene: Scene, ctx: JobContext) -> None:
    await scene.pay(1)
    ctx.start(scene.fail())
    raise ValueError("no rate")


async def returns(scene: Scene, ctx: JobContext) -> str:
    await scene.pay(1)
    return "early"


async def continues(scene: Scene, ctx: JobContext) -> None:
    await scene.pay(1)
    await ctx.continue_as(scene.job())


SEQUENTIAL = [
    (divides, "raised ZeroDivisionError: division by zero"),
    (raises_from, "raised ValueError: no rate"),
    (raises_at_once, "raised KeyError"),
    (raises_cancelled, "raised "),
    (raises_in_group, "raised ZeroDivisionError: division by zero"),
    (raises_in_gather, "raised ZeroDivisionError: division by zero"),
    (raises_beside_new, "raised ValueError: no rate"),
    (returns, "has ended"),
    (continues, "begins again"),
]


@pytest.mark.parametrize(
    ("changed", "what"), SEQUENTIAL, ids=lambda each: getattr(each, "__name__", "")
)
def test_code_that_ends_before_it_has_asked_for_everything_recorded_is_parked(
    url: str, changed: Code, what: str
) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, in_sequence)
        handle = await scene.began()
        scene.code = changed
        why = await scene.parked(handle)
        assert f"the code {what}" in why
        assert "but the journal expects pay#" in why
        assert scene.undone == []
        scene.code = in_sequence
        async with app.running():
            await handle.resume()
            assert await handle.result("20s") == "done"
        assert (scene.paid, scene.undone) == ([1, 2], [])

    played(url, main)


def test_a_fork_with_steps_of_its_own_is_parked_as_any_job(url: str) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, in_sequence)
        source = await scene.began()
        async with app.running():
            fork = await source.fork("pay#2")
            await until(app, fork.id, JobState.WAITING)
        scene.code = divides
        assert "but the journal expects pay#2" in await scene.parked(fork)
        assert (scene.paid, scene.undone) == ([1, 2, 2], [])

    played(url, main)


async def with_child(scene: Scene, ctx: JobContext) -> str:
    await scene.pay(1)
    await ctx.receive("begin")
    await scene.inner()
    await ctx.receive("go")
    return "done"


async def with_message(scene: Scene, ctx: JobContext) -> str:
    await scene.pay(1)
    await ctx.receive("begin")
    await ctx.receive("go")
    return "done"


@pytest.mark.parametrize("code", [with_child, with_message], ids=lambda each: each.__name__)
def test_a_fork_with_a_child_or_a_message_of_its_own_is_parked_as_any_job(
    url: str, code: Code
) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, code)
        source = await scene.began()
        fork = await source.fork("receive:begin")
        await fork.send("begin")
        async with app.running():
            while not any(each.id == "receive:go#1" for each in await fork.journal()):
                await perdure.process.sleep("2ms")
            await until(app, fork.id, JobState.WAITING)
        scene.code = raises_at_once
        assert "but the journal expects pay#1" in await scene.parked(fork)
        assert scene.undone == []

    played(url, main)


# Code that does not fit, wherever it asks, and whoever catches that


async def other_arguments(scene: Scene, ctx: JobContext) -> None:
    await scene.pay(1)
    await scene.pay(3)


async def caught(scene: Scene, ctx: JobContext) -> None:
    try:
        await other_arguments(scene, ctx)
    except Exception:  # noqa: BLE001 - as users do
        raise ValueError("no rate") from None


async def caught_and_gone_on(scene: Scene, ctx: JobContext) -> str:
    try:
        await other_arguments(scene, ctx)
    except Exception:  # noqa: BLE001 - as users do
        await scene.pay(4)
    return "went on"


async def in_group(scene: Scene, ctx: JobContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(other_arguments(scene, ctx))


async def unknown_in_group(scene: Scene, ctx: JobContext) -> None:
    async def branch() -> None:
        await scene.pay(1)
        await scene.pay(2)
        await ctx.receive("go")
        await stranger()

    async with asyncio.TaskGroup() as group:
        group.create_task(branch())


async def too_large_in_group(scene: Scene, ctx: JobContext) -> None:
    async def branch() -> None:
        await scene.pay(1)
        await scene.pay(2)
        await ctx.receive("go")
        ctx.emit("x" * 10_000_000)

    async with asyncio.TaskGroup() as group:
        group.create_task(branch())


@App("sqlite:///never.db").step
async def stranger() -> None: ...


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (other_arguments, "pay#2 was called with other arguments"),
        (caught, "pay#2 was called with other arguments"),
        (caught_and_gone_on, "pay#2 was called with other arguments"),
        (in_group, "pay#2 was called with other arguments"),
        (unknown_in_group, "stranger"),
        (too_large_in_group, "Nothing is lost or undone"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_code_that_does_not_fit_is_parked_wherever_it_asks_and_whoever_catches_that(
    url: str, changed: Code, what: str
) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, in_sequence)
        handle = await scene.began()
        scene.code = changed
        assert what in await scene.parked(handle)
        assert (scene.paid, scene.undone) == ([1, 2], [])

    played(url, main)


# Branches


def branches(first: Code) -> Code:
    """Return code with two branches in a task group, of which the second one is in another one."""

    async def second(scene: Scene, ctx: JobContext) -> None:
        with ctx.scope("second"):
            await scene.pay(3)
            await scene.pay(4)
            await ctx.receive("never")

    async def nested(scene: Scene, ctx: JobContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(second(scene, ctx))

    async def code(scene: Scene, ctx: JobContext) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(first(scene, ctx))
            group.create_task(nested(scene, ctx))
        return "done"

    return code


async def pays_twice(scene: Scene, ctx: JobContext) -> None:
    with ctx.scope("first"):
        await scene.pay(1)
        await scene.pay(2)
        await ctx.receive("go")


async def divides_between(scene: Scene, ctx: JobContext) -> None:
    with ctx.scope("first"):
        await scene.pay(1)
        raise ZeroDivisionError


async def divides_after(scene: Scene, ctx: JobContext) -> None:
    await pays_twice(scene, ctx)
    raise ZeroDivisionError


def test_a_branch_that_raises_before_it_has_asked_for_everything_recorded_is_parked(
    url: str,
) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, branches(pays_twice))
        handle = await scene.began()
        scene.code = branches(divides_between)
        assert "but the journal expects first/pay#2" in await scene.parked(handle)
        assert scene.undone == []

    played(url, main)


def test_a_branch_that_raises_when_everything_was_asked_for_again_fails_and_is_undone(
    url: str,
) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, branches(divides_after))
        handle = await scene.began()
        await handle.send("go")
        async with app.running():
            await until(app, handle.id, JobState.COMPENSATED)
        assert sorted(scene.undone) == [1, 2, 3, 4]

    played(url, main)


# Values


async def draws_first(scene: Scene, ctx: JobContext) -> str:
    ctx.now()
    return await in_sequence(scene, ctx)


async def draws_between(scene: Scene, ctx: JobContext) -> str:
    await scene.pay(1)
    ctx.now()
    await scene.pay(2)
    await ctx.receive("go")
    return "done"


async def draws_before_branches(scene: Scene, ctx: JobContext) -> str:
    ctx.now()
    await branches(pays_twice)(scene, ctx)
    return "done"


async def draws_in_branch(scene: Scene, ctx: JobContext) -> None:
    with ctx.scope("first"):
        await scene.pay(1)
        ctx.now()
        await scene.pay(2)
        await ctx.receive("go")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (in_sequence, draws_first),
        (in_sequence, draws_between),
        (branches(pays_twice), draws_before_branches),
        (branches(pays_twice), branches(draws_in_branch)),
    ],
    ids=["first", "between", "before branches", "in a branch"],
)
def test_code_that_draws_a_value_before_what_is_recorded_is_parked(
    url: str, before: Code, after: Code
) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, before)
        handle = await scene.began()
        scene.code = after
        assert "now#1, which is not in the journal, before it asks for" in await scene.parked(
            handle
        )
        scene.code = before  # which does not ask for the value
        async with app.running():
            await handle.resume()
            await until(app, handle.id, JobState.WAITING, JobState.COMPLETED)
        assert scene.undone == []

    played(url, main)


def test_code_that_has_drifted_leaves_no_value_and_no_output_behind(url: str) -> None:
    async def emits(scene: Scene, ctx: JobContext) -> str:
        await scene.pay(1)
        await scene.pay(2)
        await ctx.receive("go")
        ctx.emit("right")
        return "done"

    async def emits_too_early(scene: Scene, ctx: JobContext) -> None:
        ctx.emit("wrong")
        ctx.now()
        raise ValueError("no rate")

    async def main(app: App) -> None:
        scene = Scene(app, emits)
        handle = await scene.began()
        scene.code = emits_too_early
        await scene.parked(handle)
        assert "now" not in {entry.name for entry in await handle.journal()}
        scene.code = emits
        async with app.running():
            await handle.resume()
            assert await handle.result("20s") == "done"
        assert [piece.value async for piece in handle.stream()] == ["right"]

    played(url, main)


def test_code_that_draws_a_value_after_everything_recorded_goes_on(url: str) -> None:
    async def draws_last(scene: Scene, ctx: JobContext) -> str:
        await in_sequence(scene, ctx)
        ctx.now()
        await scene.pay(3)
        return "drawn"

    async def main(app: App) -> None:
        scene = Scene(app, in_sequence)
        handle = await scene.began()
        scene.code = draws_last
        await handle.send("go")
        async with app.running():
            assert await handle.result("20s") == "drawn"

    played(url, main)


# Ends that are decided outside the code


@pytest.mark.parametrize("code", [in_sequence, branches(pays_twice)], ids=["sequence", "branches"])
def test_a_cancel_undoes_a_job_whose_code_has_drifted(url: str, code: Code) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, code)
        handle = await scene.began()
        scene.code = divides
        await scene.parked(handle)
        await handle.cancel()
        async with app.running():
            await until(app, handle.id, JobState.CANCELLED)
        assert sorted(scene.undone) == sorted(scene.paid)

    played(url, main)


def test_a_cancel_during_a_replay_that_has_not_asked_for_everything_cancels_and_undoes(
    url: str,
) -> None:
    async def main(app: App) -> None:
        scene, replaying = Scene(app, in_sequence), asyncio.Event()
        handle = await scene.began()

        async def waits(scene: Scene, ctx: JobContext) -> None:
            await scene.pay(1)
            replaying.set()
            await asyncio.Event().wait()

        scene.code = waits
        await handle.send("go")
        async with app.running():
            await asyncio.wait_for(replaying.wait(), 20)
            await handle.cancel()
            await until(app, handle.id, JobState.CANCELLED)
        assert scene.undone == [2, 1]

    played(url, main)


def test_a_deadline_during_a_replay_that_has_not_asked_for_everything_undoes(url: str) -> None:
    async def main(app: App) -> None:
        scene, replaying = Scene(app, in_sequence, timeout="3s"), asyncio.Event()
        handle = await scene.began()

        async def waits(scene: Scene, ctx: JobContext) -> None:
            await scene.pay(1)
            replaying.set()
            await asyncio.Event().wait()

        scene.code = waits
        await handle.send("go")
        async with app.running():
            await asyncio.wait_for(replaying.wait(), 20)
            await until(app, handle.id, JobState.COMPENSATED)
        assert scene.undone == [2, 1]

    played(url, main)


# Code that was not changed, and does something else each time

SAME = "The code is the same as at the run before, and did something else: take times, random"
PERHAPS = "If it was not, it did something else this time: take times, random"


class Rounds:
    """Code of a job that waits twice, and pays another amount when it is told to."""

    def __init__(self) -> None:
        self.usd = 1

    async def __call__(self, scene: Scene, ctx: JobContext) -> None:
        await scene.pay(self.usd)
        await ctx.receive("go")
        await ctx.receive("go")


def test_code_that_was_not_changed_is_told_what_to_take_from_the_context(url: str) -> None:
    async def main(app: App) -> None:
        rounds = Rounds()
        scene = Scene(app, rounds)
        async with app.running():
            handle = await app.submit(scene.job())
            await until(app, handle.id, JobState.WAITING)
            rounds.usd = 2
            why = await scene.parked(handle)
        assert SAME in why
        assert "from ctx.now(), ctx.random() and ctx.uuid()" in why
        assert "version" not in why

    played(url, main)


def test_a_worker_that_has_not_seen_the_job_begin_names_both_causes(url: str) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, rounds := Rounds())
        handle = await scene.began()
        rounds.usd = 2
        why = await scene.parked(handle)
        assert "If it was changed since, run a worker with the code as it was" in why
        assert PERHAPS in why

    played(url, main)


def test_a_worker_that_gets_a_job_back_from_another_names_both_causes(url: str) -> None:
    async def main(app: App) -> None:
        scene = Scene(app, rounds := Rounds())
        async with app.running():
            handle = await app.submit(scene.job())
            await until(app, handle.id, JobState.WAITING)
            (first,) = nodes(app)
            first.drain()
            async with app.running():  # another worker, which runs the job meanwhile
                await handle.send("go")
                while len(await handle.journal()) < 3:
                    await perdure.process.sleep("2ms")
                await until(app, handle.id, JobState.WAITING)
            first.resume()
            rounds.usd = 2
            assert PERHAPS in await scene.parked(handle)

    played(url, main)
