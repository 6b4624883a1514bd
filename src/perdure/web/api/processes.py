"""Processes: the live tree of a worker and of `perdure up`, one process in full, and its end."""

import os
from typing import Any, Final

import anyio.to_thread
from msgspec import Struct

from perdure.base.errors import ProcError
from perdure.entries.control_socket import ask_all, runtime_folder
from perdure.jobs.worker_command import WorkerAction
from perdure.web.access.principal import Permission
from perdure.web.api.workers import NoBody
from perdure.web.request import Answer, ApiRequest, Page, Route


class WorkerTree(Struct, frozen=True, kw_only=True):
    """The processes of a worker.

    A node has `id` (in its supervisor), `pid`, `kind`, `label`, `state`, `restarts`, `age`,
    `mailbox`, `awaits`, `children` and `left_out`; what works on a job has `job`, and maybe `step`.
    """

    worker: str
    os_pid: int
    roots: list[dict[str, Any]]


class ProcessView(Struct, frozen=True, kw_only=True):
    """One process of a worker, seen from outside."""

    worker: str
    pid: str
    names: list[str]
    function: str
    state: str
    age: float
    trap_links: bool
    mailbox: int
    messages: list[str]  # the first ones, shortened, without secrets
    parent: str | None
    links: list[str]
    monitors: list[str]
    monitored_by: list[str]
    tasks: int
    stack: list[str]
    restarts: int
    supervisor: str | None
    restart: str | None  # when its supervisor starts it again
    allow_kill: bool
    job: str | None = None
    step: str | None = None


class KillAnswer(Struct, frozen=True, kw_only=True):
    """A process was killed; its supervisor may start another one in its place."""

    pid: str
    killed: bool
    restarts: bool


class UpPage(Page, frozen=True, kw_only=True):
    """What `perdure up` runs on this machine, for this user: folder, entries and processes."""

    items: list[dict[str, Any]]


async def show_tree(request: ApiRequest) -> Answer:
    """Return the process tree of a worker."""
    found = await request.store.ask_worker(request.path["id"], WorkerAction.TREE)
    return Answer(WorkerTree(**found))


async def show_process(request: ApiRequest) -> Answer:
    """Return one process of a worker."""
    return Answer(ProcessView(**await _ask(request, WorkerAction.INSPECT)))


async def kill(request: ApiRequest) -> Answer:
    """Kill a process of a worker."""
    return Answer(KillAnswer(**await _ask(request, WorkerAction.KILL)))


async def restart(request: ApiRequest) -> Answer:
    """Kill a process that its supervisor then starts again."""
    return Answer(KillAnswer(**await _ask(request, WorkerAction.RESTART)))


async def _ask(request: ApiRequest, action: WorkerAction) -> dict[str, Any]:
    return await request.store.ask_worker(request.path["id"], action, request.path["pid"])


async def list_up(request: ApiRequest) -> Answer:
    """Return the trees of every `perdure up` of this machine and user."""
    found = await anyio.to_thread.run_sync(_trees)
    return Answer(UpPage(items=found, now=await request.store.now()))


def _trees() -> list[dict[str, Any]]:
    try:
        return ask_all(runtime_folder(os.environ))
    except ProcError:  # others can open the folder, or one of them does not answer
        return []


_WORKER: Final = "/api/v1/workers/{id}"
_PROCESS: Final = f"{_WORKER}/processes/{{pid}}"

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{_WORKER}/tree",
        handler=show_tree,
        permission=Permission.PROCESSES_READ,
        summary="Show the process tree of a worker",
        response=WorkerTree,
        tag="processes",
    ),
    Route(
        method="GET",
        path=_PROCESS,
        handler=show_process,
        permission=Permission.PROCESSES_READ,
        summary="Show one process of a worker",
        response=ProcessView,
        tag="processes",
    ),
    Route(
        method="POST",
        path=f"{_PROCESS}/kill",
        handler=kill,
        permission=Permission.PROCESSES_KILL,
        summary="Kill a process of a worker",
        request=NoBody,
        response=KillAnswer,
        tag="processes",
    ),
    Route(
        method="POST",
        path=f"{_PROCESS}/restart",
        handler=restart,
        permission=Permission.PROCESSES_KILL,
        summary="Kill a process that its supervisor then starts again",
        request=NoBody,
        response=KillAnswer,
        tag="processes",
    ),
    Route(
        method="GET",
        path="/api/v1/up",
        handler=list_up,
        permission=Permission.PROCESSES_READ,
        summary="Show what `perdure up` runs on this machine",
        response=UpPage,
        tag="processes",
    ),
)
