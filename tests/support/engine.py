"""What the engine's tests share: an app on a real store, run as a real worker."""

from collections.abc import Callable, Coroutine
from typing import Any

import perdure
from perdure.app import App
from perdure.engine.run.context import JobContext
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.node import WorkerNode
from perdure.jobs.state import JobState

# Quick enough for tests, and in the same proportions as the real ones.
QUICK = WorkerSettings(
    concurrency=20,
    lease="3s",
    heartbeat="300ms",
    stop_before_expiry="500ms",
    stuck_after="3s",
    keep_in_memory="20ms",
    poll="200ms",
    cancel_grace="100ms",
    drain_grace="2s",
    processes=2,
    start_record_after="20ms",
    reap_every="50ms",
    expiry_every="50ms",
)

Test = Callable[..., Coroutine[Any, Any, None]]


def durable(test: Test) -> Callable[..., None]:
    """Run a test as root process with an open app on the store `url`."""

    def run(url: str) -> None:
        async def main() -> None:
            app = App(url, worker=QUICK)
            try:
                await test(app)
            finally:
                await app.close()

        perdure.run(main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def nodes(app: App) -> list[WorkerNode]:
    """Return the workers of an app in this process."""
    return app._nodes  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


async def obeyed(app: App, job_id: str) -> None:
    """Wait until the worker of a running job has heard what is asked of it."""
    (node,) = nodes(app)
    while (run := node.runs.get(job_id)) is not None and run.ending is None:
        await perdure.process.sleep("2ms")


async def until(app: App, job_id: str, *states: JobState) -> None:
    """Wait until a job is in one of these states."""
    reached = await (await app.handle(job_id)).until(*states)
    assert reached in states, f"the job is {reached}"


def job_of(app: App, step: Any) -> Any:
    """Make a job of one step without arguments."""

    @app.job
    async def job(ctx: JobContext) -> Any:
        return await step()

    return job
