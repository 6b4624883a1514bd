"""`perdure workers`, `queues` and `schedules`, and what others say of a job that nobody runs."""

import asyncio
from collections.abc import Awaitable, Callable

from perdure.jobs.model import Schedule
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support.cli import APP, CommandLine
from tests.support.store import new_job


def test_workers_are_listed_with_what_they_serve_and_know(cli: CommandLine) -> None:
    cli.submit("welcome", name="Kim")
    assert (
        "No worker is running: `perdure worker MODULE:APP` starts one." in cli.run("workers").stdout
    )
    with cli.worker("--concurrency", 3, "--queue", "mail"):
        [worker] = cli.json("workers")
        table = cli.run("workers").stdout

    assert (worker["queues"], worker["concurrency"], worker["running"]) == (["mail"], 3, 0)
    assert worker["jobs"]["welcome"] == {"version": "1", "accepts": []}
    assert "greet" in worker["steps"]
    assert "mail" in table
    assert "0 of 3" in table


def test_a_queue_is_paused_and_resumed(cli: CommandLine) -> None:
    submit = ("submit", APP, "welcome", "-a", '{"name": "Kim"}')
    cli.run(*submit)
    assert "is paused" in cli.run("queues", "pause", "default", "--reason", "deploy").stdout
    assert "already" in cli.run("queues", "pause", "default").stdout
    [queue] = cli.json("queues", "list")
    with cli.worker():
        [job] = cli.json("jobs", "list")
        waiting = cli.run("jobs", "show", job["id"]).stdout
        assert "paused" in cli.run("queues", "list").stdout
        assert "is resumed" in cli.run("queues", "resume", "default").stdout
        done = cli.wait_for(job["id"])

    assert (queue["queue"], queue["paused"], queue["ready"]) == ("default", True, 1)
    assert "a worker: queue default is paused" in waiting
    assert done["state"] == "COMPLETED"


def test_a_job_that_no_worker_knows_is_visible_everywhere(cli: CommandLine) -> None:
    _on_store(cli, lambda store: store.submit([new_job("a" * 32, name="brand_new")]))
    with cli.worker():
        shown = cli.run("jobs", "show", "a" * 32).stdout
        listed = cli.run("jobs", "list").stdout
        found = cli.json("jobs", "show", "a" * 32)
        doctor = cli.run("doctor", "--store", cli.url)

    assert "a worker: no worker knows brand_new" in shown
    assert "no worker knows brand_new" in listed
    assert (found["state"], found["unserved"]) == ("PENDING", "no worker knows brand_new")
    assert doctor.exit_code == 1
    assert "1 job waits: no worker knows brand_new" in doctor.stdout


def test_schedules_are_listed_paused_resumed_and_deleted(cli: CommandLine) -> None:
    job = new_job("x", name="welcome")
    _on_store(
        cli,
        lambda store: store.put_schedule(
            Schedule(name="s", cron="0 3 * * *", job=job, next_at=9e9)
        ),
    )
    of = ("s", "--tenant", "acme")
    assert cli.run("schedules", "pause", *of).exit_code == 0
    [paused] = cli.json("schedules", "list")
    assert cli.run("schedules", "resume", *of).exit_code == 0
    [resumed] = cli.json("schedules", "list", "--tenant", "acme")
    assert cli.run("schedules", "delete", "s").exit_code != 0
    assert cli.run("schedules", "delete", *of).exit_code == 0

    assert (paused["name"], paused["tenant"], paused["paused"]) == ("s", "acme", True)
    assert resumed["paused"] is False
    assert "There are no schedules: " in cli.run("schedules", "list").stdout


def _on_store(cli: CommandLine, verb: Callable[[Store], Awaitable[object]]) -> None:
    async def main() -> None:
        store: Store = open_store(cli.url)
        await store.open()
        try:
            await verb(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_a_worker_is_drained_shows_its_processes_and_is_resumed(cli: CommandLine) -> None:
    with cli.worker():
        [worker] = cli.json("workers", "list")
        assert "drains" in cli.run("workers", "drain", worker["id"][:8]).stdout
        assert cli.json("workers")[0]["draining"] is True
        assert "lease_renewer" in cli.run("workers", "tree", worker["id"]).stdout
        assert "claims again" in cli.run("workers", "resume", worker["id"]).stdout
    assert cli.run("workers", "drain", "nobody").exit_code != 0
