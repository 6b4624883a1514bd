"""The address of a server: a pid, a name, a handle, or a name that a registry keeps."""

from typing import Protocol, TypeAlias

from perdure.base.errors import NoServer, NotRegistered
from perdure.base.pid import Pid
from perdure.process.process import Process, current


class Via:
    """A name that is kept outside of the kernel, such as by a registry.

    It is accepted as `name=` at a start, and wherever a pid or a handle is.
    """

    __slots__ = ()

    @property
    def pid(self) -> Pid:
        """The process that has the name now.

        Raises:
            NotRegistered: None has it.
        """
        raise NotImplementedError

    def check_free(self) -> None:
        """Raise if the name is taken.

        Raises:
            NameTaken: Another process has it.
        """
        raise NotImplementedError

    def give(self, process: Process) -> None:
        """Give the name to a new process that has not run yet."""
        raise NotImplementedError


class HasPid(Protocol):
    """A handle, or a name that a registry keeps."""

    @property
    def pid(self) -> Pid:
        """The process that it refers to now."""
        ...


ServerRef: TypeAlias = Pid | str | HasPid


def pid_of(ref: ServerRef, verb: str) -> Pid:
    """Return the pid of the process.

    Raises:
        NoServer: Nobody has the name.
        TypeError: It does not refer to a process.
    """
    if isinstance(ref, Pid):
        return ref
    if isinstance(ref, str):
        holder = current(verb).runtime.names.get(ref)
        if holder is None:
            raise NoServer(ref)
        return holder.pid
    try:
        pid = getattr(ref, "pid", None)
    except NotRegistered as error:  # a name of a registry
        raise NoServer(error.name) from None
    if not isinstance(pid, Pid):
        raise TypeError(f"{verb} takes a pid, a name, or a handle with a `.pid`; not {ref!r}")
    return pid
