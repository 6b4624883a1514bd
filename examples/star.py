"""Star: many children linked to one parent. When the parent fails, each child gets an event."""

import perdure
from perdure import process
from perdure.process import Pid

CHILD_COUNT = 10


async def star_parent_main(observer: Pid) -> None:
    """Start children that link to us, and fail."""
    inbox = process.inbox()
    children: list[Pid] = []

    # Start the children, and send each our pid.
    for _ in range(CHILD_COUNT):
        child = process.spawn(linker_child_main)
        process.send(child, "parent", process.self_pid())
        children.append(child)

    # Wait until every child has confirmed its link.
    for _ in children:
        message = await inbox.receive()
        if message.topic != "linked":
            process.fail("expected linked confirmation")

    # Let the observer get ready.
    process.send(observer, "children", children)
    await inbox.receive()

    # Fail: every child must get a LINK_DOWN.
    process.fail("PARENT_STAR_FAILURE")


async def linker_child_main() -> str | None:
    """Link to the parent, and outlive it."""
    events, inbox = process.events(), process.inbox()

    # Without this the child would die with its parent, and return nothing.
    process.set_options(trap_links=True)

    # Receive the parent's pid.
    message = await inbox.receive()
    parent: Pid = message.payload

    # Link to the parent, and confirm it.
    process.link(parent)
    process.send(parent, "linked", process.self_pid())

    # Wait for the LINK_DOWN when the parent dies.
    event = await events.receive()
    if isinstance(event, process.LinkDown):
        return "parent_died"
    return None


async def main() -> None:
    parent = process.spawn_monitored(star_parent_main, process.self_pid())
    message = await process.inbox().receive()
    for child in message.payload:
        process.monitor(child)
    process.send(parent, "fail")

    for _ in (parent, *message.payload):
        event = await process.events().receive()
        if isinstance(event, process.Exit):
            who = "Parent" if event.sender is parent else "Child"
            print(f"{who} {event.sender} exited:", event.result.error or event.result.value)


if __name__ == "__main__":
    perdure.run(main)
