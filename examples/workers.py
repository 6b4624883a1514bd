"""The workers that the other examples start.

A worker is a plain `async def` function.
What it returns is its result, what it raises is its error.
"""

import perdure
from perdure import process
from perdure.process import sleep


async def task_worker() -> str:
    """Do one task and return its result."""
    await sleep("10ms")
    return "task done"


async def long_worker() -> str:
    """Work for a very long time, but stop at once when cancelled."""
    async for event in process.events():
        if isinstance(event, process.Cancel):
            break
    return "cancelled"


async def error_worker() -> None:
    """Fail after a short while."""
    await sleep("10ms")
    process.fail("worker error")


async def child_worker() -> None:
    """Fail at once."""
    await sleep("5ms")
    process.fail("child error")


async def main() -> None:
    print("Result:", await process.run_process(task_worker))


if __name__ == "__main__":
    perdure.run(main)
