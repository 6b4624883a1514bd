"""Steps in threads and in other OS processes."""

import asyncio
import os
import pickle
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

import perdure
from perdure import Retry
from perdure.app import App
from perdure.base.errors import DefinitionError, JobFailed
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.jobs.definition import step_of
from perdure.jobs.state import JobState
from perdure.process.threads import ThreadPool
from tests.hosts.test_trust import Trap
from tests.support import process_steps
from tests.support.engine import QUICK, durable, until


async def run_far(app: App, name: str, *args: object) -> object:
    """Run one step of another OS process as a job, and give its result."""
    app.include(process_steps.steps)
    step = app.find_step(name)

    @app.job
    async def job(ctx: JobContext) -> object:
        return await step(*args)

    async with app.running():
        return await (await app.submit(job(), tenant="acme")).result("30s")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@durable
async def test_a_step_runs_in_another_os_process(app: App) -> None:
    told = await run_far(app, "who", "hello")
    assert isinstance(told, dict)
    assert told["pid"] != os.getpid()
    assert (told["word"], told["tenant"], told["step"]) == ("hello", "acme", "who#1")
    assert told["attempt"] == 1


@durable
async def test_a_sync_step_of_another_os_process_runs_beside_its_loop(app: App) -> None:
    assert await run_far(app, "plain", 1) == 2


def test_a_killed_os_process_is_a_failed_attempt_that_goes_on_from_its_checkpoint(
    url: str, tmp_path: Path
) -> None:
    @durable
    async def case(app: App) -> None:
        assert await run_far(app, "resumes", str(tmp_path)) == 6
        assert (tmp_path / "seen").read_text().split() == list("012345")

    case(url)


@durable
async def test_items_of_another_os_process_are_judged_by_their_policy(app: App) -> None:
    assert await run_far(app, "goes_through", ["a", "bad", "b"]) == ["bad"]


@durable
async def test_a_sync_step_goes_through_items_by_a_plain_loop(app: App) -> None:
    assert await run_far(app, "goes_through_plainly", list("abcde")) == 5


@durable
async def test_a_partial_result_of_another_os_process_goes_on(app: App) -> None:
    assert await run_far(app, "pages") == 3


@durable
async def test_a_segmentation_fault_is_the_failure_of_its_step_alone(app: App) -> None:
    with pytest.raises(JobFailed, match="SIGSEGV"):
        await run_far(app, "segfaults")


@durable
async def test_the_death_of_an_os_process_is_retried_by_policy(app: App) -> None:
    assert await run_far(app, "dies_at_first") == "attempt 2"


@durable
async def test_an_error_of_another_os_process_is_that_of_the_step(app: App) -> None:
    with pytest.raises(JobFailed, match="LookupError: not here"):
        await run_far(app, "raises")


def test_a_loop_without_end_is_killed_when_its_time_is_up(url: str, tmp_path: Path) -> None:
    @durable
    async def case(app: App) -> None:
        path = tmp_path / "pid"
        app.include(process_steps.steps)
        step = app.find_step("spins")

        @app.job
        async def job(ctx: JobContext) -> None:
            await step(str(path))

        async with app.running():
            handle = await app.submit(job())
            with pytest.raises(JobFailed, match="took longer"):
                await handle.result("30s")
            while not is_gone(int(path.read_text())):
                await perdure.process.sleep("5ms")

    case(url)


def test_a_cancelled_job_takes_its_os_process_along(url: str, tmp_path: Path) -> None:
    @durable
    async def case(app: App) -> None:
        path = tmp_path / "pid"
        app.include(process_steps.steps)
        step = app.find_step("hangs")

        @app.job
        async def job(ctx: JobContext) -> None:
            await step(str(path))

        async with app.running():
            handle = await app.submit(job())
            while not path.exists() or not path.read_text():
                await perdure.process.sleep("5ms")
            await handle.cancel()
            await until(app, handle.id, JobState.CANCELLED)

    case(url)


def test_a_step_of_another_os_process_stops_at_a_checkpoint_with_its_worker(
    url: str, tmp_path: Path
) -> None:
    @durable
    async def case(app: App) -> None:
        path = tmp_path / "count"
        app.include(process_steps.steps)
        step = app.find_step("counts_slowly")

        @app.job
        async def job(ctx: JobContext) -> None:
            await step(str(path))

        handle = await app.submit(job())
        for _ in range(2):
            size = path.stat().st_size if path.exists() else 0
            async with app.running():
                while not path.exists() or path.stat().st_size <= size:
                    await perdure.process.sleep("5ms")
        lines = path.read_text().split()
        assert lines == [str(number) for number in range(len(lines))]
        assert await handle.status() is JobState.WAITING

    case(url)


@durable
async def test_more_steps_than_os_processes_wait_for_their_turn(app: App) -> None:
    app.include(process_steps.steps)
    who = app.find_step("who")

    @app.job
    async def job(ctx: JobContext) -> int:
        told = await ctx.gather(*(who(str(number)) for number in range(9)))
        return len({each["pid"] for each in told})

    async with app.running():
        assert await (await app.submit(job())).result("30s") <= 2


def test_a_function_that_no_other_process_can_find_is_refused() -> None:
    async def local(ctx: StepContext) -> None: ...

    with pytest.raises(DefinitionError, match="top of a module"):
        step_of(local, isolation="process")


@durable
async def test_an_async_step_in_a_thread_has_a_loop_of_its_own(app: App) -> None:
    main = threading.current_thread()

    @app.step(isolation="thread")
    async def work(ctx: StepContext, names: list[str]) -> list[str]:
        assert threading.current_thread() is not main
        seen: list[str] = []
        async for name in ctx.items(names, every=1):
            await asyncio.sleep(0)
            seen.append(name)
        await ctx.save_checkpoint(ctx.load_checkpoint())
        return seen

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return await work(["a", "b"])

    async with app.running():
        assert await (await app.submit(job())).result("5s") == ["a", "b"]


@durable
async def test_an_async_step_in_a_thread_is_cancelled_when_its_time_is_up(app: App) -> None:
    left = threading.Event()

    @app.step(isolation="thread", timeout="1s", retry=Retry(attempts=1))
    async def work(ctx: StepContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    @app.job
    async def job(ctx: JobContext) -> None:
        await work()

    async with app.running():
        with pytest.raises(JobFailed, match="took longer"):
            await (await app.submit(job())).result("5s")
    assert left.wait(5)


@durable
async def test_an_inline_sync_step_runs_on_the_loop(app: App) -> None:
    @app.step(isolation="inline")
    def work(ctx: SyncStepContext) -> bool:
        return threading.current_thread() is threading.main_thread()

    @app.job
    async def job(ctx: JobContext) -> bool:
        return await work()

    async with app.running():
        assert await (await app.submit(job())).result("5s") is True


@durable
async def test_a_thread_that_comes_too_late_saves_nothing(app: App) -> None:
    gate, tried = threading.Event(), threading.Event()

    @app.step(timeout="1500ms", retry=Retry(attempts=2, initial_delay="1ms"))
    def slow(ctx: SyncStepContext) -> str:
        if ctx.attempt == 2:
            gate.set()
            assert tried.wait(5)
            return f"{ctx.load_checkpoint()}"
        gate.wait(10)
        try:
            ctx.save_checkpoint("of the past")
        finally:
            tried.set()
        return "late"

    @app.job
    async def job(ctx: JobContext) -> str:
        return await slow()

    async with app.running():
        assert await (await app.submit(job())).result("10s") == "None"


@durable
async def test_a_thread_that_comes_too_late_settles_no_effect(app: App) -> None:
    gate, tried = threading.Event(), threading.Event()
    calls: list[str] = []

    def call(key: str) -> str:
        calls.append(key)
        if len(calls) == 1:
            gate.wait(10)
            return "late"
        return "in time"

    @app.step(timeout="1500ms", retry=Retry(attempts=2, initial_delay="1ms"))
    def slow(ctx: SyncStepContext) -> str:
        if ctx.attempt == 1:
            try:
                return str(ctx.effect("order", call, target="shop", in_doubt="replay"))
            finally:
                tried.set()
        gate.set()
        assert tried.wait(5)
        return str(ctx.effect("order", call, target="shop", in_doubt="replay"))

    @app.job
    async def job(ctx: JobContext) -> str:
        return await slow()

    async with app.running():
        handle = await app.submit(job())
        assert await handle.result("10s") == "in time"
    (line,) = await handle.effects()
    assert (line.result, len(calls), len(set(calls))) == (b'"in time"', 2, 1)


@durable
async def test_a_thread_that_comes_too_late_goes_through_no_more_items(app: App) -> None:
    gate, left = threading.Event(), threading.Event()
    seen: list[str] = []

    @app.step(timeout="500ms", retry=Retry(attempts=1))
    def slow(ctx: SyncStepContext, names: list[str]) -> list[str]:
        late = not seen
        try:
            for name in cast("Iterable[str]", ctx.items(names, on_error="skip")):
                seen.append(name)
                if late:
                    gate.wait(10)
        finally:
            if late:
                left.set()
        report = ctx.item_report
        assert report is not None
        gate.set()
        assert left.wait(5)
        return [item.key for item in report.skipped]

    @app.job
    async def job(ctx: JobContext) -> list[str]:
        return await slow(["a", "b", "c"])

    async with app.running():
        assert await (await app.submit(job())).result("10s") == ["a"]
    assert seen == ["a", "b", "c"]


@durable
async def test_a_thread_that_never_returns_gives_its_place_to_another(app: App) -> None:
    threads = ThreadPool("test", 1)
    gate = threading.Event()
    stuck = asyncio.ensure_future(threads.call(gate.wait))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(threads.call(lambda: "done"))
    while not stuck.done():
        stuck.cancel()
        await perdure.process.sleep("2ms")
    assert await waiting == "done"
    gate.set()
    assert await threads.call(lambda: "again") == "again"
    assert QUICK.processes >= 1


def test_a_pickle_in_a_payload_is_never_loaded(url: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    trap = pickle.dumps(Trap(mark))
    text = trap.decode("latin-1").replace("\0", "")

    async def main() -> None:
        app = App(url, worker=QUICK)
        parts = [text, {"__reduce__": ["os.system", ["x"]]}, list(trap)]
        told = await run_far(app, "echo", trap, text, parts)
        assert told == [trap.hex(), text, parts, [text, parts], {"text": text, "parts": parts}]
        await app.close()

    perdure.run(main)
    assert not mark.exists()
    pickle.loads(trap)
    assert mark.exists()
