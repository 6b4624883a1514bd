"""The loop of everything that a worker does now and then, in virtual time."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.engine.worker.periodic import every
from perdure.testing import simulated


class Duty:
    """Notes when it is done; `script` says what each round returns or raises."""

    def __init__(self, *script: float | Exception | None) -> None:
        self.times: list[float] = []
        self._script = list(script)
        self._clock = asyncio.get_running_loop().time
        self._begun_at = self._clock()

    async def __call__(self) -> float | None:
        self.times.append(round(self._clock() - self._begun_at, 3))
        said = self._script.pop(0) if self._script else None
        if isinstance(said, Exception):
            raise said
        return said


async def run_for(
    seconds: float,
    duty: Duty,
    interval: float,
    *,
    wake: asyncio.Event | None = None,
    on_failure: Callable[[], None] = lambda: None,
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await every(interval, duty, what="testing", wake=wake, on_failure=on_failure)


@simulated
async def test_a_duty_is_done_at_once_and_then_after_each_interval() -> None:
    duty = Duty()
    await run_for(35, duty, 10)
    assert duty.times == [0, 10, 20, 30]


@simulated
async def test_a_duty_may_say_when_it_wants_to_be_done_again() -> None:
    duty = Duty(3, None)
    await run_for(15, duty, 10)
    assert duty.times == [0, 3, 13]


@simulated
async def test_a_wake_up_ends_the_pause() -> None:
    duty, wake = Duty(), asyncio.Event()
    asyncio.get_running_loop().call_later(4, wake.set)
    await run_for(15, duty, 10, wake=wake)
    assert duty.times == [0, 4, 14]


@simulated
async def test_what_is_asked_for_during_the_work_is_not_forgotten() -> None:
    wake = asyncio.Event()
    rounds: list[int] = []

    async def work() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            wake.set()
        await pause(1)

    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            await every(10, work, what="testing", wake=wake)
    assert len(rounds) == 2


@simulated
async def test_while_the_store_fails_pauses_grow_and_no_wake_up_ends_them() -> None:
    duty, wake, failures = Duty(*[StoreError("down")] * 30), asyncio.Event(), list[int]()

    def failed() -> None:
        failures.append(1)
        wake.set()

    await run_for(60, duty, 0.0, wake=wake, on_failure=failed)
    pauses = [later - earlier for earlier, later in zip(duty.times, duty.times[1:], strict=False)]
    assert len(failures) == len(duty.times) < 40
    assert 0 < pauses[0] < 0.5
    assert 2 < max(pauses) <= 5


@simulated
async def test_an_outage_never_makes_a_duty_more_frequent() -> None:
    duty = Duty(StoreError("down"), StoreError("down"))
    await run_for(35, duty, 10)
    assert duty.times == [0, 10, 20, 30]


@simulated
async def test_any_other_error_ends_the_loop() -> None:
    with pytest.raises(LookupError, match="a bug"):
        await every(10, Duty(LookupError("a bug")), what="testing")


@simulated
async def test_a_duty_that_something_wakes_is_tried_again_soon_after_the_store_failed() -> None:
    duty = Duty(StoreError("no"))
    await run_for(60, duty, 3600, wake=asyncio.Event())
    assert len(duty.times) == 2
