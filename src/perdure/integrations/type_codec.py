"""Values of a framework as plain JSON values, and back, by pydantic's `TypeAdapter`.

    RESPONSE = TypeCodec(ModelResponse)
    RESPONSE.load(RESPONSE.dump(response)) == response

The plain values may contain NUL characters and lone surrogates, which the store keeps. Every agent
framework with an adapter depends on pydantic.
"""

from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


class TypeCodec(Generic[T]):
    """Writes and reads values of one type."""

    def __init__(self, declared: Any) -> None:
        self._declared = declared

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self._declared)  # made on first use: it may take a tenth of a second

    def dump(self, value: T) -> Any:
        """Return a value as plain JSON values."""
        return self._adapter.dump_python(value, mode="json", warnings=False)

    def load(self, plain: Any) -> T:
        """Return a value from plain JSON values."""
        return self._adapter.validate_python(plain)
