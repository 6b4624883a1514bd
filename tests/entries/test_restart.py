"""How a service comes back: the decision by itself, and the real thing in virtual time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from perdure import process
from perdure.entries import Loaded, load_entries, ready
from perdure.entries.model import Lifecycle, RestartPlan, Seconds
from perdure.entries.service import ServiceState, after_end
from perdure.errors import EntriesError, Killed, Shutdown
from perdure.process import sleep
from perdure.testing import simulated

CALM = RestartPlan(jitter=0)


@pytest.fixture(autouse=True)
def no_crash_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


# The decision


@pytest.mark.parametrize("error", [None, Shutdown()])
def test_a_planned_end_is_no_reason_to_start_again(error: BaseException | None) -> None:
    assert after_end(Lifecycle(), 1, 0.0, error).state is ServiceState.EXITED


@pytest.mark.parametrize("error", [ValueError(), Killed()])
def test_a_failure_is(error: BaseException) -> None:
    assert after_end(Lifecycle(), 1, 0.0, error).state is ServiceState.RESTARTING


def test_the_delay_grows_by_the_factor_up_to_the_most() -> None:
    lifecycle = Lifecycle(restart=CALM)

    delays = [after_end(lifecycle, starts, 0.0, ValueError()).delay for starts in range(1, 10)]

    assert delays == [1, 2, 4, 8, 16, 32, 64, 90, 90]


def test_jitter_spreads_the_delay_by_its_fraction() -> None:
    lifecycle = Lifecycle(restart=RestartPlan(jitter=0.1))

    delays = [after_end(lifecycle, 1, 0.0, ValueError(), Random(seed)).delay for seed in range(100)]

    assert 0.9 <= min(delays) < 0.95
    assert 1.05 < max(delays) <= 1.1


@pytest.mark.parametrize(
    ("starts", "state"), [(2, ServiceState.RESTARTING), (3, ServiceState.FAILED)]
)
def test_the_attempts_count_the_starts(starts: int, state: ServiceState) -> None:
    lifecycle = Lifecycle(restart=RestartPlan(max_attempts=3))

    assert after_end(lifecycle, starts, 0.0, ValueError()).state is state


def test_having_been_stable_it_begins_anew() -> None:
    lifecycle = Lifecycle(
        stable_threshold=Seconds(5), restart=RestartPlan(max_attempts=3, jitter=0)
    )

    assert after_end(lifecycle, 3, 4.9, ValueError()).state is ServiceState.FAILED
    assert after_end(lifecycle, 3, 5.0, ValueError()) == (ServiceState.RESTARTING, 0, 1.0)


# The real thing


def service(
    function: Callable[..., Awaitable[Any]],
    restart: dict[str, Any] | None = None,
    **lifecycle: Any,
) -> Loaded:
    """Load one service that runs a function."""
    entries = [
        {"name": "f", "kind": "process.py", "source": function},
        {
            "name": "s",
            "kind": "process.service",
            "process": "f",
            "lifecycle": {
                "auto_start": True,
                "restart": {"jitter": 0, **(restart or {})},
                **lifecycle,
            },
        },
    ]
    return load_entries({"version": "1.0", "namespace": "app", "entries": entries})


def now() -> float:
    return asyncio.get_running_loop().time()


@simulated
async def test_a_failing_service_is_started_again_with_growing_delays() -> None:
    starts: list[float] = []

    async def fail() -> None:
        starts.append(now())
        raise ValueError("no")

    async with service(fail, {"max_attempts": 5, "max_delay": "5s"}) as loaded:
        await loaded.wait()

    assert starts == [0, 1, 3, 7, 12]
    assert loaded.failed() == [loaded.services["app:s"]]
    assert repr(loaded.services["app:s"].error) == "ValueError('no')"


@simulated
async def test_one_attempt_is_one_start() -> None:
    starts: list[float] = []

    async def fail() -> None:
        starts.append(now())
        raise ValueError

    async with service(fail, {"max_attempts": 1}) as loaded:
        await loaded.wait()

    assert starts == [0]


@simulated
async def test_a_service_that_was_stable_waits_the_first_delay_again() -> None:
    starts: list[float] = []
    lives = iter([0, 0, 5, 4, 0, 0])  # seconds that each life lasts

    async def fail() -> None:
        starts.append(now())
        await sleep(next(lives))
        raise ValueError

    async with service(fail, {"max_attempts": 3}) as loaded:
        await loaded.wait()

    # Failed at 0 and 1; stable from 3 to 8; failed at 13, at 14 and, as third start since, at 16.
    assert starts == [0, 1, 3, 9, 14, 16]
    assert loaded.services["app:s"].restarts == 5


@simulated
async def test_a_service_that_returns_is_done() -> None:
    async def work() -> None:
        await sleep("3s")

    async with service(work) as loaded:
        assert loaded.services["app:s"].state is ServiceState.RUNNING
        await loaded.wait()
        assert loaded.services["app:s"].state is ServiceState.EXITED
        assert now() == 3

    assert loaded.failed() == []


@simulated
async def test_a_killed_service_comes_back_as_another_process() -> None:
    async def work() -> None:
        await sleep("1h")

    async with service(work) as loaded:
        first = loaded.services["app:s"].pid
        assert first is not None
        process.kill(first)
        await sleep("500ms")
        assert loaded.services["app:s"].state is ServiceState.RESTARTING
        assert loaded.services["app:s"].pid is None
        await sleep("1s")
        assert loaded.services["app:s"].state is ServiceState.RUNNING
        assert loaded.services["app:s"].pid not in (None, first)

    assert loaded.services["app:s"].state is ServiceState.STOPPED


@simulated
async def test_a_stop_between_two_starts_is_the_end() -> None:
    starts: list[float] = []

    async def fail() -> None:
        starts.append(now())
        raise ValueError

    async with service(fail):
        await sleep("1.5s")

    await sleep("1h")
    assert starts == [0, 1]


@simulated
async def test_a_service_gets_cancel_and_its_stop_timeout() -> None:
    told: list[object] = []

    async def work() -> None:
        async for event in process.events():
            told.append(event)
            await sleep("2s")
            return

    async with service(work, stop_timeout="3s"):
        await sleep("1s")

    assert now() == 3
    [event] = told
    assert isinstance(event, process.Cancel)
    assert event.deadline == 4


@simulated
async def test_one_that_does_not_end_in_time_is_killed() -> None:
    async def work() -> None:
        async for _ in process.events():
            pass

    async with service(work, stop_timeout="3s") as loaded:
        await sleep("1s")

    assert now() == 4
    assert isinstance(loaded.services["app:s"].error, Killed)


@simulated
async def test_one_that_reads_no_events_is_ended_at_once() -> None:
    ended: list[float] = []

    async def work() -> None:
        try:
            await sleep("1h")
        finally:
            ended.append(now())

    async with service(work):
        await sleep("1s")

    assert ended == [1]


# Ready


@simulated
async def test_the_start_waits_until_the_service_says_that_it_is_ready() -> None:
    async def work() -> None:
        await sleep("2s")
        ready()
        await sleep("1h")

    async with service(work, ready=True) as loaded:
        assert now() == 2
        assert loaded.services["app:s"].state is ServiceState.RUNNING


@simulated
async def test_one_that_is_not_ready_in_time_is_killed_and_started_again() -> None:
    starts: list[float] = []

    async def work() -> None:
        starts.append(now())
        if len(starts) == 3:
            ready()
        await sleep("1h")

    async with service(work, ready=True, start_timeout="4s") as loaded:
        assert starts == [0, 5, 11]
        assert loaded.services["app:s"].restarts == 2


@simulated
async def test_one_that_never_gets_ready_fails_the_whole() -> None:
    async def work() -> None:
        await sleep("1h")

    with pytest.raises(EntriesError, match="entry app:s: it did not start: TimeoutError"):
        async with service(work, {"max_attempts": 2}, ready=True):
            pass

    assert [info.pid for info in process.processes()] == [process.self_pid()]


@simulated
async def test_an_optional_one_is_not_waited_for() -> None:
    async def work() -> None:
        await sleep("2s")
        ready()
        await sleep("1h")

    async with service(work, ready=True, startup="optional") as loaded:
        assert loaded.services["app:s"].state is ServiceState.STARTING
        await sleep("3s")
        assert loaded.services["app:s"].state is ServiceState.RUNNING


@simulated
async def test_to_be_ready_means_nothing_to_a_plain_process() -> None:
    ready()
