"""What the receiver is asked, and when: not while a call may be under way, and after a refusal."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Retry
from perdure.app import App
from perdure.base.errors import Refused
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import DidNotHappen, EffectState, Happened, Unknown
from perdure.jobs.state import JobState
from tests.support.engine import durable, job_of, until

QUICK = Retry(attempts=5, initial_delay="1ms", jitter=0)
LIMIT = "30s"


class Slow:
    """A receiver that has not yet acted when its caller gives up."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.asked: list[str] = []

    async def charge(self, key: str) -> str:
        asyncio.get_running_loop().call_later(0.1, self.charged.append, key)
        raise TimeoutError("no answer in time")

    async def ask(self, key: str) -> Happened | DidNotHappen:
        self.asked.append(key)
        return Happened("paid") if key in self.charged else DidNotHappen()


@pytest.mark.parametrize("options", [{}, {"settle_after": "3s"}], ids=["lease", "settle_after"])
def test_a_receiver_is_not_asked_while_the_call_may_be_under_way(
    url: str, options: dict[str, Any]
) -> None:
    @durable
    async def case(app: App) -> None:
        receiver = Slow()
        given: Any = {"query": receiver.ask, **options}

        @app.step(retry=QUICK)
        async def pay(ctx: StepContext) -> str:
            return str(await ctx.effect("payment", receiver.charge, target="card", **given))

        handle = await app.submit(job_of(app, pay)())
        async with app.running():
            await until(app, handle.id, JobState.WAITING)  # it holds no worker
            assert receiver.asked == []
            assert await handle.result(LIMIT) == "paid"
        assert len(receiver.charged) == len(receiver.asked) == 1

    case(url)


@durable
async def test_a_step_that_may_take_longer_is_waited_for_longer(app: App) -> None:
    @app.step(retry=QUICK, timeout="1h")
    async def pay(ctx: StepContext) -> str:
        receiver = Slow()
        given: Any = {"query": receiver.ask}
        return str(await ctx.effect("payment", receiver.charge, target="card", **given))

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        await until(app, handle.id, JobState.WAITING)
        (entry,), (line,) = await handle.journal(), await handle.effects()
        assert entry.wake_at == pytest.approx(line.called_at + 3600)
        assert (entry.attempt, entry.error is None) == (1, False)
        await handle.cancel()
        await until(app, handle.id, JobState.CANCELLED)


@durable
async def test_when_the_same_key_is_used_again_is_noted_before_the_call(app: App) -> None:
    noted: list[bool] = []

    async def charge(_: str) -> str:
        (line,) = await handle.effects()
        noted.append(line.last_called_at is not None and line.last_called_at > line.called_at)
        if len(noted) < 3:
            raise TimeoutError
        return "paid"

    async def ask(_: str) -> DidNotHappen:
        return DidNotHappen()

    @app.step(retry=QUICK)
    async def pay(ctx: StepContext) -> str:
        given: Any = {"query": ask, "settle_after": 0}
        return str(await ctx.effect("payment", charge, target="card", **given))

    handle = await app.submit(job_of(app, pay)())
    async with app.running():
        assert await handle.result(LIMIT) == "paid"
    assert noted == [False, True, True]


class Answered(Exception):
    """As libraries raise it for an HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


class Turns:
    """A receiver whose first call gets no answer, and whose later ones are turned away."""

    def __init__(self, error: Exception, answer: Callable[[], Any] | None = None) -> None:
        self.keys: list[str] = []
        self._error = error
        self.options: Any = {"in_doubt": "replay", "settle_after": 0}
        if answer is not None:
            self.options["query"] = lambda _: answer()  # pyright: ignore[reportUnknownLambdaType]

    def charge(self, key: str) -> str:
        self.keys.append(key)
        if len(self.keys) == 1:
            raise TimeoutError("no answer in time")
        if key == self.keys[0]:
            raise self._error
        return "paid"


def steps_of(app: App, receiver: Turns) -> dict[str, Any]:
    """Make the same step twice: on the loop, and in a thread."""

    @app.step(retry=QUICK)
    async def inline(ctx: StepContext) -> str:
        return str(await ctx.effect("payment", receiver.charge, target="card", **receiver.options))

    @app.step(retry=QUICK)
    def thread(ctx: Any) -> str:
        return str(ctx.effect("payment", receiver.charge, target="card", **receiver.options))

    return {"inline": inline, "thread": thread}


@pytest.mark.parametrize("where", ["inline", "thread"])
@pytest.mark.parametrize("error", [Refused("declined"), Answered(422)], ids=["refused", "422"])
def test_that_a_repeated_call_was_refused_is_for_a_person_to_judge(
    url: str, error: Exception, where: str
) -> None:
    @durable
    async def case(app: App) -> None:
        receiver = Turns(error)
        handle = await app.submit(job_of(app, steps_of(app, receiver)[where])())
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            (line,) = await handle.effects()
            assert line.state is EffectState.IN_DOUBT
            await handle.resolve(line.no, "happened", result="seen at the bank", by="kim")
            assert await handle.result(LIMIT) == "seen at the bank"
        assert receiver.keys == [line.key] * 2

    case(url)


@pytest.mark.parametrize(
    ("answer", "result", "states"),
    [
        (lambda: Happened("found"), "found", ["DONE"]),
        (DidNotHappen, "paid", ["FAILED", "DONE"]),
    ],
)
def test_that_a_repeated_call_was_refused_is_for_the_receiver_to_judge(
    url: str, answer: Callable[[], Any], result: str, states: list[str]
) -> None:
    @durable
    async def case(app: App) -> None:
        asked: list[int] = []

        def after_the_refusal() -> Any:
            asked.append(len(receiver.keys))
            return Unknown() if len(receiver.keys) == 1 else answer()

        receiver = Turns(Refused("declined"), after_the_refusal)
        handle = await app.submit(job_of(app, steps_of(app, receiver)["inline"])())
        async with app.running():
            assert await handle.result(LIMIT) == result
        assert [line.state for line in await handle.effects()] == states
        assert asked == [1, 2]

    case(url)


@durable
async def test_if_the_receiver_cannot_tell_after_a_refusal_a_person_is_asked(app: App) -> None:
    receiver = Turns(Refused("declined"), Unknown)
    handle = await app.submit(job_of(app, steps_of(app, receiver)["inline"])())
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert b"a repeated call was refused" in ((await handle.job()).error or b"")
    assert len(receiver.keys) == 2
