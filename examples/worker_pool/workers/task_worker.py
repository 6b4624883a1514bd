"""The worker: does one piece of work after another, until somebody cancels it."""

from perdure import process
from perdure.process import after, select, sleep


async def main(worker_id: int) -> str:
    events = process.events()
    inbox = process.inbox()

    print(f"Task worker {worker_id} started")

    while True:
        timeout = after("5s")
        channel, value, _ = await select(inbox, events, timeout)

        if channel is events:
            if isinstance(value, process.Cancel):
                print(f"Worker {worker_id} cancelled")
                return "cancelled"
            if isinstance(value, process.LinkDown):
                print(f"Worker {worker_id} linked process died")
                process.fail("linked_process_died")

        elif channel is inbox:
            if value.topic == "work":
                print(f"Worker {worker_id} processing: {value.payload}")
                await sleep("100ms")
                process.send(value.sender, "result", f"completed: {value.payload}")

        elif channel is timeout:
            # Nothing to do
            print(f"Worker {worker_id} idle")
