"""A cancel asks a process to stop, and gives it time to clean up.

The worker gets a CANCEL event, cleans up and returns: a normal end, with a result.
If it did not end within 100 ms, it would be killed.
"""

import perdure
from perdure import process
from perdure.process import select, sleep


async def worker_main() -> str:
    events, inbox = process.events(), process.inbox()

    while True:
        result = await select(inbox, events)

        if result.channel is events:
            if isinstance(result.value, process.Cancel):
                # Release what the worker holds.
                cleanup()
                return "cancelled gracefully"
        else:
            # Handle a message from the inbox.
            handle_message(result.value)


def cleanup() -> None:
    print("Cleaning up")


def handle_message(message: process.Message) -> None:
    print("Message:", message.topic, message.payload)


async def main() -> None:
    events = process.events()

    # Start the worker and monitor it.
    worker = process.spawn_monitored(worker_main)
    process.send(worker, "work", "a")
    await sleep("5ms")

    # Cancel it, with 100 ms to clean up.
    process.cancel(worker, "100ms")

    # Wait for the EXIT event.
    event = await events.receive()
    if isinstance(event, process.Exit):
        print("Worker cancelled:", event.sender)
        print("Result:", event.result.value)


if __name__ == "__main__":
    perdure.run(main)
