"""A program with two OS workers, which prints their ids and waits to be killed."""

import sys

import perdure
from perdure import process
from perdure.process import ProcessHost
from tests.support import work


async def main(code: str) -> None:
    await ProcessHost("cpu", kind="os", workers=2).start()
    for _ in range(2):
        process.spawn(work.os_pid, process.self_pid(), host="cpu")
    children = [(await process.inbox().receive()).payload for _ in range(2)]
    for _ in range(2):
        process.spawn(getattr(work, code), host="cpu")
    await perdure.process.sleep("300ms")  # until they run
    sys.stdout.write(" ".join(map(str, children)) + "\n")
    sys.stdout.flush()
    await perdure.process.sleep("1h")


if __name__ == "__main__":
    perdure.run(main, sys.argv[1])
