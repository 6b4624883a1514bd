"""Monitoring is one-way: the parent gets an event when a worker ends, and continues.

Run it with `python -m examples.monitor`.
"""

import perdure
from examples.workers import task_worker
from perdure import process


async def main() -> None:
    events = process.events()

    # Start and monitor the worker atomically, so that its end cannot be missed.
    # If it cannot be started, this raises.
    process.spawn_monitored(task_worker)

    # Wait until the worker is done.
    event = await events.receive()

    if isinstance(event, process.Exit):
        print("Worker exited:", event.sender)
        print("Result:", event.result.value)
        if event.result.error:
            print("Error:", event.result.error)


if __name__ == "__main__":
    perdure.run(main)
