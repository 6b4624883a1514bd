"""After `unmonitor` no EXIT event comes, not even one that was already on its way."""

import perdure
from examples.workers import long_worker
from perdure import process
from perdure.process import after, select, sleep


async def main() -> None:
    events = process.events()

    # Start and monitor.
    worker = process.spawn_monitored(long_worker)
    await sleep("5ms")

    # Stop monitoring.
    process.unmonitor(worker)

    # Cancel the worker.
    process.cancel(worker, "100ms")

    # No event comes: nobody monitors it any more.
    result = await select(events, after("200ms"))
    if result.channel is events:
        process.fail("should not receive event after unmonitor")
    print("No event after unmonitor; worker alive:", process.alive(worker))


if __name__ == "__main__":
    perdure.run(main)
