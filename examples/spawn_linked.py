"""Start a child and link to it atomically, so that even a child that dies at once is noticed."""

import perdure
from examples.workers import child_worker
from perdure import process


async def parent_main() -> None:
    # Handle the death of a child instead of dying with it.
    process.set_options(trap_links=True)

    events = process.events()

    # Start the child and link to it.
    process.spawn_linked(child_worker)

    # Receive LINK_DOWN when the child dies.
    event = await events.receive()
    if isinstance(event, process.LinkDown):
        print("Child died:", event.sender)


async def main() -> None:
    await process.run_process(parent_main)


if __name__ == "__main__":
    perdure.run(main)
