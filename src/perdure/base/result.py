"""What an operation gave when it may be one of several things; made for `match`.

All three are always true, whatever they hold,
so that `await task.poll(1) or await task.shutdown()` reads as it should: only None is "not yet".
"""

from typing import Generic, TypeVar

from msgspec import Struct

T_co = TypeVar("T_co", covariant=True)


class Ok(Struct, Generic[T_co], frozen=True):
    """It worked and gave this value."""

    value: T_co

    def __repr__(self) -> str:
        return f"Ok({self.value!r})"


class Err(Struct, Generic[T_co], frozen=True):
    """It failed in a way that the caller is expected to handle; `with_retry` tries again."""

    error: T_co

    def __repr__(self) -> str:
        return f"Err({self.error!r})"


class Exited(Struct, Generic[T_co], frozen=True):
    """The process that should have given a value ended first; a None reason is a normal end."""

    reason: T_co

    def __repr__(self) -> str:
        return f"Exited({self.reason!r})"
