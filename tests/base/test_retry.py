import asyncio
import selectors
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from perdure.base.result import Err, Ok
from perdure.base.retry import Retry, pause, with_retry

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(JumpingSelector(self))

    def time(self) -> float:
        return self.now


class JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self._loop.now += timeout
        return ready


def run_virtually(main: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run to the end; give the result and the virtual time that it took."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(main)
        return result, runner.get_loop().time()


class Script:
    """Plays outcomes one after another: raises exceptions, returns all else."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes = list(outcomes)
        self.calls = 0

    def sync(self) -> object:
        self.calls += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def waiting(self) -> object:
        await asyncio.sleep(0)
        return self.sync()


class Sleeps(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture(params=["sync", "waiting"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def function_of(script: Script, kind: str) -> Callable[[], Any]:
    return script.sync if kind == "sync" else script.waiting


async def test_a_first_success_is_returned_without_a_pause(kind: str) -> None:
    script, sleeps = Script(Ok(1)), Sleeps()
    assert await with_retry(function_of(script, kind), sleep=sleeps) == Ok(1)
    assert (script.calls, sleeps) == (1, [])


async def test_an_err_is_tried_again_with_growing_pauses(kind: str) -> None:
    script, sleeps = Script(Err(1), Err(2), Err(3), Ok("at last")), Sleeps()
    assert await with_retry(function_of(script, kind), sleep=sleeps) == Ok("at last")
    assert sleeps == [0.2, 0.4, 0.8]


async def test_the_last_err_is_returned_after_four_calls(kind: str) -> None:
    script, sleeps = Script(*(Err(number) for number in range(10))), Sleeps()
    assert await with_retry(function_of(script, kind), sleep=sleeps) == Err(3)
    assert (script.calls, sleeps) == (4, [0.2, 0.4, 0.8])


@pytest.mark.parametrize("value", [None, 0, False, "text", ("error", 1), ValueError])
async def test_anything_else_is_returned_as_it_is(value: object, kind: str) -> None:
    script = Script(value)
    assert await with_retry(function_of(script, kind)) is value
    assert script.calls == 1


async def test_an_exception_goes_up_at_once(kind: str) -> None:
    script, sleeps = Script(OSError("gone")), Sleeps()
    with pytest.raises(OSError, match="gone"):
        await with_retry(function_of(script, kind), sleep=sleeps)
    assert (script.calls, sleeps) == (1, [])


async def test_an_exception_of_the_policy_is_tried_again(kind: str) -> None:
    script, sleeps = Script(ConnectionError(), Err(1), TimeoutError(), Ok(1)), Sleeps()
    policy = Retry(on=(OSError,))
    assert await with_retry(function_of(script, kind), policy=policy, sleep=sleeps) == Ok(1)
    assert sleeps == [0.2, 0.4, 0.8]


async def test_another_exception_ends_the_retries(kind: str) -> None:
    script, sleeps = Script(OSError(), KeyError("k"), Ok(1)), Sleeps()
    with pytest.raises(KeyError):
        await with_retry(function_of(script, kind), policy=Retry(on=OSError), sleep=sleeps)
    assert (script.calls, sleeps) == (2, [0.2])


async def test_the_last_exception_is_raised_as_it_is(kind: str) -> None:
    errors = [OSError(number) for number in range(3)]
    script, sleeps = Script(*errors), Sleeps()
    policy = Retry(attempts=3, on=OSError)
    with pytest.raises(OSError, match="2") as caught:
        await with_retry(function_of(script, kind), policy=policy, sleep=sleeps)
    assert caught.value is errors[2]
    assert caught.value.__context__ is None
    assert sleeps == [0.2, 0.4]


async def test_a_single_attempt_never_pauses() -> None:
    sleeps = Sleeps()
    assert await with_retry(lambda: Err(1), policy=Retry(attempts=1), sleep=sleeps) == Err(1)
    assert sleeps == []


async def test_chance_comes_from_the_caller() -> None:
    first, second = Sleeps(), Sleeps()
    policy = Retry(jitter=0.5)
    for sleeps in (first, second):
        await with_retry(lambda: Err(1), policy=policy, sleep=sleeps, random=Random(3))
    assert first == second != [0.2, 0.4, 0.8]


def test_pauses_run_on_the_clock_of_the_loop() -> None:
    result, time = run_virtually(with_retry(lambda: Err(1)))
    assert result == Err(1)
    assert time == pytest.approx(1.4)


def test_a_pause_takes_its_seconds() -> None:
    _, time = run_virtually(pause(3600))
    assert time == pytest.approx(3600)


def test_a_cancelled_pause_leaves_no_timer_and_no_further_call() -> None:
    script = Script(Err(1), Err(2))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await with_retry(script.sync)

    _, time = run_virtually(main())
    assert script.calls == 1
    assert time == pytest.approx(0.1)


async def test_a_cancelled_pause_disarms_its_timer() -> None:
    loop = asyncio.get_running_loop()
    before = len(timers(loop))
    waiter = loop.create_task(pause(3600))
    await asyncio.sleep(0)
    assert len(timers(loop)) == before + 1
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert len(timers(loop)) == before


def test_a_pause_cancelled_in_the_turn_of_its_end_stays_cancelled() -> None:
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        # Nearer to each other than the loop tells times apart: both are due in one turn.
        waiter = loop.create_task(pause(1 + 5e-10))
        loop.call_later(1, waiter.cancel)
        with pytest.raises(asyncio.CancelledError):
            await waiter

    run_virtually(main())
    assert complaints == []


def timers(loop: Any) -> list[asyncio.TimerHandle]:
    return [timer for timer in loop._scheduled if not timer.cancelled()]  # noqa: SLF001
