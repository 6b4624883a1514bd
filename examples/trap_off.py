"""Without `trap_links` the failure of a linked process ends this one too."""

import perdure
from examples.workers import error_worker
from perdure import process


async def worker_main() -> None:
    events = process.events()

    # By default, trap_links is off.
    options = process.get_options()
    print("trap_links:", options.trap_links)

    # Start a linked worker that will fail.
    process.spawn_linked(error_worker)

    # When the child fails, this process ends.
    await events.receive()
    print("This line is never reached")


async def main() -> None:
    process.spawn_monitored(worker_main)

    event = await process.events().receive()
    if isinstance(event, process.Exit):
        print("Worker exited:", event.result.error)


if __name__ == "__main__":
    perdure.run(main)
