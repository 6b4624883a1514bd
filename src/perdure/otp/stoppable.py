"""What `async with` means for a handle: at the end of the block, that which it stands for stops."""

from typing import Protocol, Self

from perdure.base.pid import Pid


class Handle(Protocol):
    """What stands for a process that can be stopped."""

    @property
    def pid(self) -> Pid:
        """The process."""
        ...

    async def stop(self) -> None:
        """End it and wait until it is dead."""
        ...


class Stoppable:
    """Is stopped at the end of an `async with`; if it is dead already, that is fine."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self: Handle, *_: object) -> None:
        if self.pid.target is not None:
            await self.stop()
