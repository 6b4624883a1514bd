"""`app.sync`: the caller's side of an app for plain code, which has no event loop."""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from perdure import (
    App,
    Client,
    Handle,
    JobContext,
    JobQuery,
    JobState,
    StepContext,
    SyncStepContext,
)
from perdure.app import SyncApp
from perdure.approvals import Person
from perdure.client import SyncClient
from perdure.engine.caller import Caller
from perdure.engine.sync import SyncHandle
from perdure.errors import JobFailed, JobNotFound
from tests.engine.test_callers import WITHIN, WorkerThread, adding, in_threads
from tests.support.engine import QUICK
from tests.support.program import program


def test_plain_code_submits_waits_sends_and_finds(url: str) -> None:
    app = adding(url)
    with WorkerThread(app), app.sync as jobs:
        added = jobs.submit(app.find_job("add")(1), key="one")
        assert added.result(timeout=WITHIN) == 2
        assert not jobs.submit(app.find_job("add")(1), key="one").new
        waits = jobs.submit(app.find_job("wait")())
        assert waits.send("go", "on")
        assert waits.wait(timeout=WITHIN) is JobState.COMPLETED
        several = jobs.submit_many([app.find_job("add")(2), app.find_job("add")(3)])
        assert [each.result(timeout=WITHIN) for each in several] == [3, 4]
        assert len(jobs.find_jobs(JobQuery(limit=10))) == 4
        assert jobs.handle(waits.id).status() is JobState.COMPLETED
        with pytest.raises(JobNotFound):
            jobs.handle("0" * 32)


def test_an_error_of_the_call_is_raised_to_the_plain_caller(url: str) -> None:
    app = adding(url)
    with app.sync as jobs:
        handle = jobs.submit(app.find_job("wait")())
        handle.cancel("not needed", by="kim")
        with pytest.raises(JobFailed):
            handle.result(timeout=WITHIN)
        waits = jobs.submit(app.find_job("wait")())
        with pytest.raises(TimeoutError, match="has not ended within"):
            waits.result(timeout="1ms")


def test_people_decide_through_plain_code(url: str) -> None:
    app = App(url, worker=QUICK)

    @app.step(approval="required")
    async def pay(ctx: StepContext, amount: int) -> str:
        return f"paid {amount}"

    @app.job
    async def settle(ctx: JobContext) -> str:
        return await pay(7)

    with WorkerThread(app), app.sync as jobs:
        handle = jobs.submit(settle(), user="ann")
        while not (asked := jobs.approvals()):
            pass
        person = Person(id="kim", tenant="default", roles=frozenset({"approver"}))
        jobs.decide(asked[0], "approve", by=person)
        assert handle.result(timeout=WITHIN) == "paid 7"


def test_many_threads_share_one_loop(url: str) -> None:
    app = adding(url)
    with WorkerThread(app):
        add = app.find_job("add")
        found = in_threads(lambda number: app.sync.submit(add(number)).result(timeout=WITHIN))
        assert found == list(range(1, 9))
        loops = [each for each in threading.enumerate() if each.name == "perdure-sync"]
        assert len(loops) == 1
    app.sync.close()


def test_it_blocks_a_loop_that_runs_in_the_same_thread(url: str) -> None:
    app = adding(url)

    async def cell_of_a_notebook() -> object:
        return app.sync.submit(app.find_job("add")(4)).result(timeout=WITHIN)

    with WorkerThread(app):
        assert asyncio.run(cell_of_a_notebook()) == 5
    app.sync.close()


def test_on_the_loop_of_a_worker_it_refuses_instead_of_waiting_for_itself(url: str) -> None:
    app = adding(url)

    @app.job
    async def impatient(ctx: JobContext) -> int:
        return len(app.sync.find_jobs())

    refused = pytest.raises(JobFailed, match="which would wait for itself: write `await app")
    with WorkerThread(app), refused:
        app.sync.submit(impatient()).result(timeout=WITHIN)
    app.sync.close()


def test_a_sync_step_of_the_same_worker_may_wait_for_another_job(url: str) -> None:
    app = adding(url)

    @app.step
    def ask(ctx: SyncStepContext) -> int:
        return app.sync.submit(app.find_job("add")(1)).result(timeout=WITHIN)

    @app.job
    async def patient(ctx: JobContext) -> int:
        return await ask()

    with WorkerThread(app):
        assert app.sync.submit(patient()).result(timeout=WITHIN) == 2
    app.sync.close()


def test_a_caller_that_ends_early_leaves_the_others_waiting(url: str) -> None:
    app = adding(url)
    handle = app.sync.submit(app.find_job("wait")())
    with ThreadPoolExecutor(1) as pool, WorkerThread(app):
        other = pool.submit(handle.result)
        with pytest.raises(TimeoutError):
            handle.result(timeout="10ms")
        handle.send("go", "on")
        assert other.result(WITHIN) == "on"
    app.sync.close()


def test_after_close_the_next_call_begins_anew(url: str) -> None:
    app = adding(url)
    app.sync.submit(app.find_job("add")(1))
    app.sync.close()
    app.sync.close()
    assert len(app.sync.find_jobs()) == 1
    app.sync.close()


def test_the_thread_ends_with_the_app(url: str) -> None:
    app = adding(url)
    app.sync.find_jobs()
    (thread,) = (each for each in threading.enumerate() if each.name == "perdure-sync")
    app.sync._wait(Caller.close, ())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    del app
    gc.collect()
    thread.join(WITHIN)
    assert not thread.is_alive()


INTERRUPTED = """
import sys
from perdure import App

app = App("{url}")

@app.job
async def never(ctx) -> None: ...

handle = app.sync.submit(never())
try:
    say("waits")
    handle.result()
except KeyboardInterrupt:
    say(f"interrupted, and the job is {{handle.status()}}")
app.sync.close()
"""


def test_ctrl_c_ends_the_wait_and_not_the_job(url: str) -> None:
    with program(INTERRUPTED.format(url=url)) as run:
        assert run.line() == "waits"
        run.signal(signal.SIGINT)
        assert run.end()[:2] == (0, ["interrupted, and the job is PENDING"])


FORKED = """
import os, sys
from perdure import App

app = App(sys.argv[1])

@app.job
async def nothing(ctx) -> None: ...

app.sync.submit(nothing())
if (child := os.fork()) == 0:
    app.sync.submit(nothing())
    app.sync.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(app.sync.find_jobs()))
app.sync.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks")
def test_a_forked_process_has_a_loop_of_its_own(url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, url],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "2\n")


@pytest.mark.parametrize(
    ("kind", "plain"), [(Handle, SyncHandle), (App, SyncApp), (Client, SyncClient)]
)
def test_every_method_of_the_caller_has_a_plain_twin(kind: type, plain: type) -> None:
    works = {"running", "run", "serve", "store", "prune_transactions"}  # a worker is no caller
    works.add("submit_new")  # for the web package, which makes jobs from requests
    asynchronous = {
        name
        for name, _ in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in works
    }
    missing = {name for name in asynchronous if not callable(getattr(plain, name, None))}
    assert missing == set()


def test_a_plain_twin_is_documented_as_its_original() -> None:
    assert SyncApp.decide.__doc__ == App.decide.__doc__
    assert SyncHandle.cancel.__doc__ == Handle[None].cancel.__doc__
