"""SIGTERM and Ctrl-C for a worker: the first drains, the second cancels its steps, the third kills.

The runtime by itself kills everything at the second one, and would leave the jobs to their leases.
"""

import contextlib
import signal
import threading
from collections.abc import Generator
from functools import partial

from perdure.engine.node import Node
from perdure.process.root import AdoptedProcess

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def obeyed_signals(node: Node) -> Generator[None, None, None]:
    """Handle the signals inside the block, where they would otherwise be the runtime's."""
    root = node.runtime.root
    theirs = root is None or isinstance(root, AdoptedProcess)  # the loop is somebody else's
    if theirs or threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in _SIGNALS:
        with contextlib.suppress(NotImplementedError):  # not every loop can
            node.loop.add_signal_handler(number, partial(_obey, node, number))
    try:
        yield
    finally:
        for number in _SIGNALS:
            with contextlib.suppress(NotImplementedError):
                node.loop.add_signal_handler(number, node.runtime.on_signal, number)


def _obey(node: Node, number: signal.Signals) -> None:
    if not node.runtime.hears(number):
        return
    if node.runtime.received and not node.hurried.is_set():
        node.hurry()
    else:
        node.runtime.interrupted(number)
