"""With `trap_links` the failure of a linked process is an event, and this one lives on."""

import perdure
from examples.workers import error_worker
from perdure import process


async def worker_main() -> str | None:
    # Trap links.
    process.set_options(trap_links=True)

    events = process.events()

    # Start a linked worker that will fail.
    process.spawn_linked(error_worker)

    # Wait for the LINK_DOWN event.
    event = await events.receive()

    if isinstance(event, process.LinkDown):
        print("Child failed, handling gracefully")
        return "LINK_DOWN_RECEIVED"
    return None


async def main() -> None:
    print("Result:", await process.run_process(worker_main))


if __name__ == "__main__":
    perdure.run(main)
