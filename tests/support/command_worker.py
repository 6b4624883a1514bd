"""A worker in an OS process of its own: `python -m tests.support.command_worker URL`."""

import sys

import perdure
from perdure.app import App
from perdure.engine.settings import WorkerSettings
from perdure.engine.worker.worker import until_told_to_stop

SETTINGS = WorkerSettings(
    lease="3s",
    heartbeat="300ms",
    stop_before_expiry="500ms",
    stuck_after="3s",
    poll="200ms",
    allow_kill=True,
)


async def main(url: str) -> None:
    app = App(url, worker=SETTINGS)
    async with app.running():
        sys.stdout.write("up\n")
        sys.stdout.flush()
        await until_told_to_stop()
    await app.close()


if __name__ == "__main__":
    perdure.run(main, sys.argv[1])
