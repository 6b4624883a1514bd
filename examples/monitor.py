"""Monitoring is one-way: the parent is told when a worker ends, and goes on.

Run it with `python -m examples.monitor`.
"""

import perdure
from examples.workers import task_worker
from perdure import process


async def main() -> None:
    events = process.events()

    # Start the worker and monitor it, as one act: its end cannot be missed.
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
