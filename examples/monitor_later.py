"""A process that already runs can be monitored too.

If it is dead by then, the EXIT event comes at once: there is no race.
"""

import perdure
from examples.workers import long_worker
from perdure import process
from perdure.process import sleep


async def main() -> None:
    events = process.events()

    # Start it without monitoring …
    worker = process.spawn(long_worker)

    # … and begin to monitor it later.
    process.monitor(worker)

    # Cancel the worker.
    await sleep("5ms")
    process.cancel(worker, "100ms")

    # Receive the EXIT event.
    event = await events.receive()
    if isinstance(event, process.Exit):
        print("Worker terminated:", event.sender)


if __name__ == "__main__":
    perdure.run(main)
