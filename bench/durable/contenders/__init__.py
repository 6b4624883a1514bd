"""The contenders, one module each; listed here without being imported.

A module has three functions:

    prepare(place)              make what the contender needs in an empty store
    work(place, concurrency)    be a worker: call ``ready()``, then take jobs until killed
    client(place)               a context manager that yields a ``Client``
"""

import importlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol, cast

from bench.contenders import Contender
from bench.durable.place import POSTGRES, SQLITE, Place


class Client(Protocol):
    """Submits jobs; they are durable when a call returns."""

    def submit(self, job: int, steps: int) -> None: ...

    def submit_many(self, jobs: Iterable[int], steps: int) -> None: ...


class Module(Protocol):
    """What a contender's module has."""

    def prepare(self, place: Place) -> None: ...

    def work(self, place: Place, concurrency: int) -> None: ...

    def client(self, place: Place) -> AbstractContextManager[Client]: ...


FLOOR = Contender("floor")
OURS = Contender("perdure", "perdure")
DBOS = Contender("dbos", "dbos")
PEERS = (DBOS, Contender("absurd", "absurd_sdk"), Contender("langgraph", "langgraph"))
KNOWN = (FLOOR, OURS, *PEERS)

# Contenders that cannot use every store.
_STORES = {"absurd": (POSTGRES,)}


def can_use(contender: Contender, store: str) -> bool:
    """Whether a contender can keep its jobs in a store."""
    return store in _STORES.get(contender.name, (SQLITE, POSTGRES))


def module(name: str) -> Module:
    """Import a contender."""
    return cast("Module", importlib.import_module(f"bench.durable.contenders.{name}"))
