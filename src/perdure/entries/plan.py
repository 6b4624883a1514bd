"""What is to be run, with every reference resolved: the result of reading entries."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from perdure.entries.document import Place
from perdure.entries.model import HostSize, Lifecycle

Function: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]


class FileSource(NamedTuple):
    """`source: file://x.py`."""

    path: Path
    method: str

    def __str__(self) -> str:
        return str(self.path)


class ModuleSource(NamedTuple):
    """`source: module:pkg.mod`."""

    module: str
    method: str

    def __str__(self) -> str:
        return f"module {self.module}"


Source: TypeAlias = FileSource | ModuleSource | Function


class HostPlan(NamedTuple):
    """A host that may be started."""

    id: str
    size: HostSize
    lifecycle: Lifecycle
    at: Place


class Definition(NamedTuple):
    """A function that can be spawned by its id, and what its spawn need not say."""

    id: str
    source: Source
    host: str | None
    input: tuple[Any, ...] | None
    at: Place


class ServicePlan(NamedTuple):
    """A process that is kept running; without a host it runs on the running loop."""

    id: str
    process: str
    host: str | None
    input: tuple[Any, ...]
    lifecycle: Lifecycle
    at: Place


class Plan(NamedTuple):
    """All entries, by their ids, and which of them are started, in this order."""

    hosts: dict[str, HostPlan]
    definitions: dict[str, Definition]
    services: dict[str, ServicePlan]
    needs: dict[str, list[str]]  # by what can be started; without cycles
    order: list[str]
