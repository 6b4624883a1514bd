"""What an operator asks of a worker, through the store."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.client import Client
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.steps.step_context import StepContext
from perdure.errors import (
    AmbiguousId,
    ArgumentError,
    CommandRefused,
    WorkerNotFound,
    WorkerSilent,
)
from perdure.jobs.state import JobState
from perdure.jobs.worker_command import WorkerAction, WorkerCommand
from tests.support.engine import QUICK, durable, nodes
from tests.support.store import sql

KILLS = WorkerSettings(
    lease="3s",
    heartbeat="300ms",
    stop_before_expiry="500ms",
    stuck_after="3s",
    poll="200ms",
    keep_in_memory="20ms",
    allow_kill=True,
)


def _all(roots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    waiting = list(roots)
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1]["children"]
    return found


@durable
async def test_a_worker_shows_its_tree_with_the_jobs_that_it_runs(app: App) -> None:
    begun = asyncio.Event()

    @app.step
    async def work(ctx: StepContext) -> None:
        begun.set()
        await perdure.process.sleep("1h")

    @app.job
    async def job(ctx: JobContext) -> None:
        await work()

    async with app.running():
        handle = await app.submit(job())
        await begun.wait()
        (node,) = nodes(app)
        tree = await app.ask_worker(node.owner, "tree")
        shown = _all(tree["roots"])
        assert {"jobs", "lease_renewer", "commands", "producer"} <= {
            each["id"] for each in shown if each["id"]
        } | {"jobs"}
        working = [each for each in shown if each.get("step") == "work#1"]
        assert [each["job"] for each in working] == [handle.id]
        assert any(each.get("job") == handle.id and "step" not in each for each in shown)
        await handle.cancel()
        await handle.wait("10s")


@durable
async def test_a_drained_worker_claims_nothing_until_it_is_resumed(app: App) -> None:
    @app.job
    async def job(ctx: JobContext) -> str:
        return "done"

    async with app.running():
        (node,) = nodes(app)
        answer = await app.ask_worker(node.owner[:8], "drain", by="ann")
        assert answer == {"draining": True, "running": 0}
        (worker,) = await app.workers()
        assert worker.draining
        handle = await app.submit(job())
        fleet = await (await app.store()).fleet(90)
        assert fleet.why_waiting(await handle.job()) == "all workers are draining"
        assert node.free == 0
        await app.ask_worker(node.owner, "resume")
        assert await handle.result("10s") == "done"
        (worker,) = await app.workers()
        assert not worker.draining


@durable
async def test_a_drain_releases_running_jobs_at_their_next_safe_point(app: App) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.step
    async def work(ctx: StepContext) -> int:
        begun.set()
        await go_on.wait()
        return 1

    @app.job
    async def job(ctx: JobContext) -> int:
        return await work() + await work()

    async with app.running():
        (node,) = nodes(app)
        handle = await app.submit(job())
        await begun.wait()
        assert (await app.ask_worker(node.owner, "drain"))["running"] == 1
        go_on.set()
        while node.claimed:
            await perdure.process.sleep("5ms")
        assert (await handle.job()).owner is None
        assert (await handle.job()).state is not JobState.COMPLETED
        await app.ask_worker(node.owner, "resume")
        assert await handle.result("10s") == 2


@durable
async def test_a_process_is_inspected_with_its_first_messages_without_secrets(app: App) -> None:
    async with app.running():
        pid = perdure.process.spawn(_deaf)
        perdure.process.send(pid, "greet", {"name": "kim", "password": "canary-4711"})
        (node,) = nodes(app)
        shown = await app.ask_worker(node.owner, "inspect", {"pid": str(pid)})
        assert (shown["mailbox"], shown["state"]) == (1, "parked")
        assert "kim" in shown["messages"][0]
        assert "canary-4711" not in str(shown)
        assert any("_deaf" in line for line in shown["stack"])
        perdure.process.kill(pid)


async def _deaf() -> None:
    await perdure.process.sleep("1h")


@durable
async def test_a_worker_kills_only_where_its_settings_allow_it(app: App) -> None:
    async with app.running():
        pid = perdure.process.spawn(_deaf)
        (node,) = nodes(app)
        with pytest.raises(CommandRefused, match="allow_kill=True"):
            await app.ask_worker(node.owner, "kill", {"pid": str(pid)})
        assert perdure.process.alive(pid)
        perdure.process.kill(pid)


@durable
async def test_a_killed_part_of_a_worker_is_started_again_and_shows_its_restarts(app: App) -> None:
    async with app.running(KILLS):
        (node,) = nodes(app)
        shown = _all((await app.ask_worker(node.owner, "tree"))["roots"])
        (scheduler,) = [each for each in shown if each["id"] == "scheduler"]
        answer = await app.ask_worker(node.owner, "restart", {"pid": scheduler["pid"]})
        assert answer == {"pid": scheduler["pid"], "killed": True, "restarts": True}
        with pytest.raises(CommandRefused, match="it has ended"):
            await app.ask_worker(node.owner, "kill", {"pid": scheduler["pid"]})
        again = _all((await app.ask_worker(node.owner, "tree"))["roots"])
        (scheduler,) = [each for each in again if each["id"] == "scheduler"]
        assert scheduler["restarts"] == 1
        info = await app.ask_worker(node.owner, "inspect", {"pid": scheduler["pid"]})
        assert (info["restarts"], info["restart"]) == (1, "permanent")


@durable
async def test_what_no_supervisor_would_start_again_is_not_restarted(app: App) -> None:
    async with app.running(KILLS):
        pid = perdure.process.spawn(_deaf)
        (node,) = nodes(app)
        with pytest.raises(CommandRefused, match="no supervisor"):
            await app.ask_worker(node.owner, "restart", {"pid": str(pid)})
        await app.ask_worker(node.owner, "kill", {"pid": str(pid)})
        assert not perdure.process.alive(pid)


@durable
async def test_a_killed_job_goes_on_from_its_journal(app: App) -> None:
    begun = [asyncio.Event(), asyncio.Event()]
    done: list[str] = []

    @app.step
    async def first(ctx: StepContext) -> None:
        done.append("first")

    @app.step
    async def second(ctx: StepContext) -> None:
        begun[len(done) - 1].set()
        done.append("second")
        await perdure.process.sleep("1h" if len(done) == 2 else 0)

    @app.job
    async def job(ctx: JobContext) -> str:
        await first()
        await second()
        return "done"

    async with app.running(KILLS):
        (node,) = nodes(app)
        handle = await app.submit(job())
        await begun[0].wait()
        shown = _all((await app.ask_worker(node.owner, "tree"))["roots"])
        (process,) = [each for each in shown if each.get("job") and "step" not in each]
        await app.ask_worker(node.owner, "kill", {"pid": process["pid"]})
        assert await handle.result("30s") == "done"
        assert done == ["first", "second", "second"]


@durable
async def test_a_wrong_question_is_refused_at_once(app: App) -> None:
    with pytest.raises(WorkerNotFound, match="perdure workers"):
        await app.ask_worker("abcdef", "tree")
    async with app.running(), app.running():
        with pytest.raises(ArgumentError, match="it can be asked to: drain"):
            await app.ask_worker(nodes(app)[0].owner, "dance")
        for node, owner in zip(nodes(app), ("abcd1", "abcd2"), strict=True):
            sql(app.url, f"UPDATE worker SET owner = '{owner}' WHERE owner = '{node.owner}'")
        with pytest.raises(AmbiguousId):
            await app.ask_worker("abcd", "tree")


@durable
async def test_a_command_whose_time_is_over_is_never_carried_out(app: App) -> None:
    async with app.running():
        (node,) = nodes(app)
        store = await app.store()
        late = WorkerCommand(id="late", owner=node.owner, action=WorkerAction.DRAIN)
        await store.ask_worker(late, -1.0)
        assert (await app.ask_worker(node.owner, "tree"))["worker"] == node.owner
        assert not node.draining
        assert sql(app.url, "SELECT id FROM worker_command WHERE id = 'late'") == []


@contextmanager
def _worker(url: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.command_worker", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "up\n"
            yield program
        finally:
            program.kill()


async def test_a_worker_in_another_process_answers(url: str) -> None:
    with _worker(url) as program:
        async with Client(url) as client:
            (worker,) = await client.workers()
            assert (worker.pid, worker.allow_kill) == (program.pid, True)
            tree = await client.ask_worker(worker.id, "tree", timeout="30s")
            assert tree["os_pid"] == program.pid
            await client.ask_worker(worker.id, "drain", timeout="30s")
            assert (await client.workers())[0].draining


async def test_a_killed_worker_is_silent_and_its_command_is_withdrawn(url: str) -> None:
    with _worker(url) as program:
        async with Client(url) as client:
            (worker,) = await client.workers()
            program.kill()
            program.wait()
            with pytest.raises(WorkerSilent, match="did not answer 'tree'"):
                await client.ask_worker(worker.id, "tree", timeout="200ms")
            assert sql(url, "SELECT * FROM worker_command") == []


@durable
async def test_who_waits_for_a_worker_that_stops_is_told_so(app: App) -> None:
    store = await app.store()
    await store.heartbeat("w1" * 8, b"{}")
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(_asked(app, "w1" * 8))
        while not sql(app.url, "SELECT 1 FROM worker_command"):
            await perdure.process.sleep("5ms")
        await store.heartbeat("w1" * 8, None)
    assert isinstance(asked.result(), WorkerNotFound)


async def _asked(app: App, owner: str) -> Exception | None:
    try:
        await app.ask_worker(owner, "tree", timeout="60s")
    except WorkerNotFound as error:
        return error
    return None


def test_a_stopping_worker_is_not_resumed(url: str) -> None:
    @durable
    async def case(app: App) -> None:
        async with app.running(QUICK):
            (node,) = nodes(app)
            node.stopping = True
            with pytest.raises(CommandRefused, match="is stopping"):
                await app.ask_worker(node.owner, "resume")

    case(url)
