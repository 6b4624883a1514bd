"""A name of Elixir or Wippy that is spelled differently here, on a class."""

from typing import NoReturn


class ForeignName:
    """Raises AttributeError where it is used, and says what to write instead."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._what = f"{owner.__name__} has no {name}"

    def __get__(self, *_: object) -> NoReturn:
        raise AttributeError(f"{self._what}: write `{self._instead}`")
