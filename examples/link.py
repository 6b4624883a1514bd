"""A link is two-way: if one of the two fails, the other gets an event, or dies with it.

Here a worker links itself to a process that it did not start.
"""

import perdure
from examples.workers import error_worker
from perdure import process
from perdure.process import after, select


async def worker_main() -> str:
    """Link to the process named in the first message, and wait for its death."""
    events, inbox = process.events(), process.inbox()

    # Get a LINK_DOWN event instead of dying too.
    process.set_options(trap_links=True)

    # Receive the target's pid.
    message = await inbox.receive()
    target, sender = message.payload, message.sender
    assert sender is not None

    # Link in both directions; if the target were dead, this would raise.
    process.link(target)

    # Tell the sender that we are linked.
    process.send(sender, "linked", process.self_pid())

    # Wait for the LINK_DOWN when the target ends.
    result = await select(events, after("3s"))
    if not isinstance(result.value, process.LinkDown):
        process.fail("no LINK_DOWN received")
    return "LINK_DOWN_RECEIVED"


async def main() -> None:
    target = process.spawn(error_worker)
    worker = process.spawn_monitored(worker_main)
    process.send(worker, "target", target)

    message = await process.inbox().receive()
    print("Linked:", message.payload, "to", target)

    event = await process.events().receive()
    if isinstance(event, process.Exit):
        print("Result:", event.result.value)


if __name__ == "__main__":
    perdure.run(main)
