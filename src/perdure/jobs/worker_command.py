"""Commands to workers: what an operator may ask of one, anywhere in the fleet; pure.

A command is a row of the store, and so is its answer: no worker need be reachable by the network.
"""

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

LARGEST_ANSWER: Final = 1024 * 1024  # bytes
LONGEST_PATIENCE: Final = 60.0  # seconds after which nobody waits for an answer any more


class WorkerAction(StrEnum):
    """What a worker can be asked."""

    DRAIN = "drain"  # claim nothing more, and release every job at its next safe point
    RESUME = "resume"  # claim again
    TREE = "tree"  # its processes
    INSPECT = "inspect"  # one process
    KILL = "kill"  # one process
    RESTART = "restart"  # one process that its supervisor then starts again


class WorkerCommand(Struct, frozen=True, kw_only=True):
    """A command to a worker."""

    id: str
    owner: str  # the worker
    action: WorkerAction
    data: dict[str, Any] = {}
    asked_by: str = ""


class WorkerAnswer(Struct, frozen=True, kw_only=True):
    """What a worker says to a command: its answer, or why it refuses."""

    data: dict[str, Any] = {}
    refused: str = ""
