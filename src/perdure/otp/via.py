"""Names that somebody else than the kernel keeps, such as a registry."""

from perdure.base.pid import Pid
from perdure.process.process import Process


class Via:
    """A name of another kind: for `name=` of a start, and wherever a pid or a handle is taken."""

    __slots__ = ()

    @property
    def pid(self) -> Pid:
        """The process that has the name now.

        Raises:
            NotRegistered: None has it.
        """
        raise NotImplementedError

    def check_free(self) -> None:
        """Refuse a name that is taken.

        Raises:
            NameTaken: Another process has it.
        """
        raise NotImplementedError

    def give(self, process: Process) -> None:
        """Give the name to a process that was just born and has not run yet."""
        raise NotImplementedError
