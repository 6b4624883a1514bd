"""A value that is never printed and never stored."""

import hmac
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    """A password, a token: `reveal` gives it, nothing else does.

    The codec refuses it, so it cannot reach a journal:
    read secrets inside of the step that needs them.
    """

    __slots__ = ("__value",)

    def __init__(self, value: T) -> None:
        self.__value = value

    def reveal(self) -> T:
        """Give the value itself."""
        return self.__value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = repr(self.__value), repr(other.reveal())  # pyright: ignore[reportUnknownArgumentType]
        return hmac.compare_digest(mine.encode(), theirs.encode())

    __hash__ = None  # pyright: ignore[reportAssignmentType]  a key of a dict would be printed with it

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is neither pickled nor copied: pass the place where it is kept")
