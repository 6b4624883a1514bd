"""One app is used from many loops and threads at once, and none of them takes it from another."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import perdure
from perdure import App, JobContext, JobState, StepContext
from perdure.errors import StoreError
from perdure.store.shared import SharedStore
from perdure.store.store import Store
from tests.support.engine import QUICK

THREADS = 8
WITHIN = 30


def adding(url: str) -> App:
    """An app with a job that adds one."""
    app = App(url, worker=QUICK)

    @app.step
    async def increase(ctx: StepContext, number: int) -> int:
        return number + 1

    @app.job
    async def add(ctx: JobContext, number: int) -> int:
        return await increase(number)

    @app.job
    async def wait(ctx: JobContext) -> str:
        return await ctx.receive("go")

    return app


class WorkerThread:
    """A worker of an app on a loop of its own, in a thread of its own."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._up = threading.Event()
        self._thread = threading.Thread(target=perdure.run, args=(self._work,))

    async def _work(self) -> None:
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        async with self._app.running():
            self._up.set()
            await self._ends.wait()

    def __enter__(self) -> None:
        self._thread.start()
        assert self._up.wait(WITHIN)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(WITHIN)
        assert not self._thread.is_alive()


def in_threads(call: Callable[[int], object], times: int = THREADS) -> list[object]:
    """Call a function in as many threads at once, and return what each returned."""
    together = threading.Barrier(times)

    def one(number: int) -> object:
        together.wait(WITHIN)
        return call(number)

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(one, range(times), timeout=WITHIN))


def test_eight_threads_submit_at_once_and_one_store_is_opened(url: str) -> None:
    app = adding(url)
    job = app.find_job("add")

    async def submitted(number: int) -> Store:
        await app.submit(job(number))
        return await app.store()

    stores = in_threads(lambda number: asyncio.run(submitted(number)))
    assert len(set(map(id, stores))) == 1
    assert len(asyncio.run(app.find_jobs())) == THREADS
    asyncio.run(app.close())


def test_eight_threads_get_their_results_beside_a_running_worker(url: str) -> None:
    app = adding(url)
    job = app.find_job("add")

    async def added(number: int) -> object:
        return await (await app.submit(job(number))).result(timeout=WITHIN)

    def several(first: int) -> list[object]:
        return [asyncio.run(added(first * 10 + more)) for more in range(5)]

    with WorkerThread(app):
        found = in_threads(several)
    assert found == [[first * 10 + more + 1 for more in range(5)] for first in range(THREADS)]
    asyncio.run(app.close())


async def test_what_makes_a_loop_of_its_own_says_what_to_write_in_a_running_one() -> None:
    app = adding("sqlite:///never_opened.db")

    async def main() -> None: ...

    with pytest.raises(RuntimeError, match=r"app\.run_sync\(\) .*`await app\.run\(…\)` there"):
        app.run_sync(app.find_job("add")(1))
    with pytest.raises(RuntimeError, match=r"app\.run_sync\(\) .*`async with app\.running\(\):`"):
        app.run_sync(main)
    with pytest.raises(RuntimeError, match=r"app\.serve_sync\(\) .*`await app\.serve\(\)` there"):
        app.serve_sync()


def test_run_sync_in_a_thread_leaves_the_store_to_a_running_worker(url: str) -> None:
    app = adding(url)
    with WorkerThread(app):
        assert in_threads(lambda number: app.run_sync(app.find_job("add")(number)), 2) == [1, 2]

        async def later() -> object:
            return await (await app.submit(app.find_job("add")(41))).result(timeout=WITHIN)

        assert asyncio.run(later()) == 42
    asyncio.run(app.close())


def test_a_handle_may_be_used_on_any_loop(url: str) -> None:
    app = adding(url)
    handle = asyncio.run(app.submit(app.find_job("wait")()))
    with WorkerThread(app):
        assert asyncio.run(handle.send("go", "on"))
        assert asyncio.run(handle.result(timeout=WITHIN)) == "on"
    assert asyncio.run(handle.status()) is JobState.COMPLETED
    asyncio.run(app.close())


def test_loops_that_come_and_go_leave_no_thread_and_no_file_behind(url: str) -> None:
    app = adding(url)
    job = app.find_job("add")

    async def tried() -> None:
        handle = await app.submit(job(1))
        with pytest.raises(TimeoutError):
            await handle.result(timeout="1ms")

    asyncio.run(tried())
    threads, files = threading.active_count(), open_files()
    for _ in range(50):
        asyncio.run(tried())
    # The store itself may have begun to listen meanwhile; fifty loops would leave far more.
    assert threading.active_count() <= threads + 1
    assert open_files() <= files + 5
    assert len(app._waits._waits) <= 2  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    asyncio.run(app.close())


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_caller_that_closes_the_app_ends_only_its_own_waits(url: str) -> None:
    app = adding(url)
    handle = asyncio.run(app.submit(app.find_job("wait")()))
    waits = threading.Event()

    async def waited() -> object:
        waits.set()
        return await handle.result(timeout=WITHIN)

    async def closed() -> None:
        mine = asyncio.ensure_future(handle.result())
        while not await handle.events():
            pass
        await app.close()
        with pytest.raises(StoreError, match="the app was closed"):
            await mine

    with WorkerThread(app), ThreadPoolExecutor(1) as pool:
        other = pool.submit(asyncio.run, waited())
        assert waits.wait(WITHIN)
        asyncio.run(closed())
        asyncio.run(handle.send("go", "on"))
        assert other.result(WITHIN) == "on"
    asyncio.run(app.close())


def test_the_last_user_closes_a_store_that_was_closed_under_it(url: str) -> None:
    app = adding(url)

    async def main() -> None:
        async with app:
            store = await app.store()
            await app.close()
            assert await store.counts() is not None
        with pytest.raises(StoreError, match="not open"):
            await store.counts()

    asyncio.run(main())


def test_a_caller_that_is_cancelled_while_it_opens_the_store_holds_up_nobody(url: str) -> None:
    app = adding(url)

    async def main() -> None:
        first = asyncio.ensure_future(app.find_jobs())
        second = asyncio.ensure_future(app.find_jobs())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == []
        await app.close()

    asyncio.run(main())


def test_a_store_that_cannot_be_opened_says_so_to_all_who_wait_and_is_tried_again(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    app = adding(f"sqlite:///{folder}/jobs.db")

    def tried(_: int) -> object:
        try:
            return asyncio.run(app.find_jobs())
        except StoreError as error:
            return str(error)

    assert set(map(str, in_threads(tried))) == {f"there is no folder {folder}: create it first"}
    folder.mkdir()
    assert asyncio.run(app.find_jobs()) == []
    asyncio.run(app.close())


def test_a_watcher_whose_loop_has_ended_is_forgotten(url: str) -> None:
    app = adding(url)
    told: list[None] = []

    async def watch() -> None:
        store = await app.store()
        store.watch(lambda: told.append(None))  # never ended

    async def main() -> Store:
        store, number = await app.store(), 0
        # Watchers are told after a submission has returned: the last one of a few forgets it.
        while store._watchers:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            number += 1
            await app.submit(app.find_job("add")(number))
        return store

    asyncio.run(watch())
    store = asyncio.run(main())
    assert store._watchers == []  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    asyncio.run(app.close())


def test_a_watcher_whose_loop_ended_before_it_heard_is_forgotten(url: str) -> None:
    app = adding(url)
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(app.store())

    async def watch() -> None:
        store.watch(lambda: None)

    loop.run_until_complete(watch())
    store.tell_watchers()
    loop.close()
    store.tell_watchers()
    assert store._watchers == []  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    asyncio.run(app.close())


FORKS = """
import asyncio, os, sys
from perdure import App

app = App(sys.argv[1])

@app.job
async def nothing(ctx) -> None: ...

asyncio.run(app.submit(nothing()))
if (child := os.fork()) == 0:
    asyncio.run(app.submit(nothing()))
    asyncio.run(app.close())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(app.submit(nothing()))
print(len(asyncio.run(app.find_jobs())))
asyncio.run(app.close())
"""


def test_a_forked_process_opens_a_store_of_its_own(url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, url],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "3\n")


def test_a_fork_leaves_no_user_of_the_store_behind(url: str) -> None:
    shared = SharedStore(lambda: pytest.fail("nothing is opened"))
    with shared._lock:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        shared.forget()
    asyncio.run(shared.leave(close=True))  # the end of a block that began in the parent
    asyncio.run(shared.close())
