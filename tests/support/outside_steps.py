"""Steps that connect, at the top of a module, so that another OS process finds them."""

import socket

from perdure.engine.registry import JobRegistry

steps = JobRegistry()


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()


@steps.step
async def inline(port: int) -> None:
    """Connect on the loop."""
    _connect(port)


@steps.step
def thread(port: int) -> None:
    """Connect in a thread."""
    _connect(port)


@steps.step(isolation="process")
async def of_process(port: int) -> None:
    """Connect in another OS process."""
    _connect(port)


@steps.step(isolation="process")
def sync_of_process(port: int) -> None:
    """Connect in another OS process, beside its loop."""
    _connect(port)
