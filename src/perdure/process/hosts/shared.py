"""Processes of a program that has more than one thread: what other threads do is taken in order."""

from perdure.process.event import Message
from perdure.process.hosts import signals
from perdure.process.hosts.node import Node
from perdure.process.process import Process
from perdure.process.root import AdoptedProcess
from perdure.process.runtime import Runtime


class SharedProcess(Process):
    """A process whose pid is known to other threads too."""

    __slots__ = ()

    def deliver(self, message: Message) -> bool:
        """Take a message in; from another thread by way of the loop."""
        node = self.runtime.node
        assert isinstance(node, Node)
        if node.is_outside():
            return node.take_in(signals.Send(self.pid, message))
        return Process.deliver(self, message)


class SharedRoot(AdoptedProcess):
    """An adopted root process whose pid is known to other threads too."""

    __slots__ = ()

    deliver = SharedProcess.deliver


def share(runtime: Runtime) -> None:
    """Make all processes of a runtime, and those to come, ready for other threads."""
    runtime.kind = SharedProcess
    for process in runtime.processes.values():
        if type(process) is Process:
            process.__class__ = SharedProcess
        elif type(process) is AdoptedProcess:
            process.__class__ = SharedRoot
