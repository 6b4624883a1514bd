"""A host as a worker sees it: it is started on, by way of the first node."""

from typing import Any

from perdure.base.errors import NameTakenAtBirth, NotPortable, SpawnError
from perdure.base.pid import Pid
from perdure.process.birth import NO_VALUES, Function, Options, make_coroutine, relate
from perdure.process.hosts import signals
from perdure.process.hosts.node import Node
from perdure.process.hosts.portable import dump_call
from perdure.process.names import check_name
from perdure.process.process import Process
from perdure.process.runtime import Runtime


class FarHost:
    """Asks the first node to start processes.

    It has no answer at once, so a start that fails there is the end of the new process.
    """

    def __init__(self, name: str, node: Node) -> None:
        self.name = name
        self._node = node

    def birth(
        self,
        runtime: Runtime,
        parent: Process | None,
        function: Function,
        args: tuple[Any, ...],
        options: Options,
    ) -> Process:
        """Start a process on the host; give what stands in for it here."""
        home = self._node.home
        assert home is not None
        if options.name is not None:
            check_name(options.name)
            if holder := runtime.names.get(options.name):
                raise NameTakenAtBirth(options.name, holder.pid)
        if self._node.threaded:
            make_coroutine(function, args).close()
            call: Any = (function, args, inherited(parent, options))
        else:
            call = portable_call(self.name, parent, function, args, options)
        pid = Pid(f"{self.name}@{runtime.host_name}", None)
        stand_in = self._node.meet(pid, home, full=True)
        stand_in.describe(function, args, parent)
        home.post(
            signals.SpawnOn(
                self.name, pid, None if parent is None else parent.pid, options.name, call
            )
        )
        relate(runtime, parent, stand_in, options._replace(name=None))
        return stand_in


def inherited(parent: Process | None, options: Options) -> dict[str, Any]:
    """Give the values that a new process sees by `process.context()`."""
    return {**(parent.values if parent is not None else NO_VALUES), **(options.values or {})}


def portable_call(
    host: str,
    parent: Process | None,
    function: Function,
    args: tuple[Any, ...],
    options: Options,
) -> bytes:
    """Pack what a process runs, having checked that it could be started here.

    Raises:
        SpawnError: It cannot be started, or cannot cross.
    """
    make_coroutine(function, args).close()
    try:
        return dump_call(function, args, inherited(parent, options))
    except NotPortable as error:
        raise SpawnError(f"cannot start a process on host {host!r}: {error}") from error
