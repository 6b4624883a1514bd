"""Chain: each process is linked to the next. When the first fails, so do all.

A -> B -> C -> D -> E -> F
"""

import perdure
from perdure import process
from perdure.process import sleep


async def chain_root_main() -> None:
    """Start the chain, and break it."""
    # Start the first child, with four more below it.
    process.spawn_linked(chain_node_main, 4)

    # Wait until the chain is built.
    await sleep("100ms")

    # Start the cascade: every linked process ends.
    process.fail("CHAIN_ROOT_FAILURE")


async def chain_node_main(depth: int) -> None:
    """Start the next node, unless this is the last."""
    if depth > 0:
        process.spawn_linked(chain_node_main, depth - 1)

    # Wait for the death of the parent, which interrupts the sleep.
    await sleep("5s")


async def main() -> None:
    root = process.spawn_monitored(chain_root_main)
    await sleep("50ms")

    nodes = [info.pid for info in process.processes() if root in info.ancestors]
    print("Chain:", " -> ".join(map(str, [root, *nodes])))
    for node in nodes:
        process.monitor(node)

    for _ in (root, *nodes):
        event = await process.events().receive()
        if isinstance(event, process.Exit):
            print(f"{event.sender} exited:", event.result.error)


if __name__ == "__main__":
    perdure.run(main)
