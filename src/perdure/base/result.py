"""The outcomes of an operation that may end in several ways; made for `match`.

All three are truthy, whatever they hold, so that only None means "not yet" in
`await task.poll(1) or await task.shutdown()`.
"""

from typing import Generic, TypeVar

from msgspec import Struct

T_co = TypeVar("T_co", covariant=True)


class Ok(Struct, Generic[T_co], frozen=True):
    """It succeeded with this value."""

    value: T_co

    def __repr__(self) -> str:
        return f"Ok({self.value!r})"


class Err(Struct, Generic[T_co], frozen=True):
    """It failed in a way that the caller is expected to handle; `with_retry` tries again."""

    error: T_co

    def __repr__(self) -> str:
        return f"Err({self.error!r})"


class Exited(Struct, Generic[T_co], frozen=True):
    """The process ended before it returned a value; the reason of a normal end is None."""

    reason: T_co

    def __repr__(self) -> str:
        return f"Exited({self.reason!r})"
