"""Commands of operators to a worker: to drain, to show its processes, to kill one of them.

A command is a row of the store. The agenda, which is read anyway, says whether there is one, so an
idle worker spends nothing on it. A command is carried out first and answered then. If the worker
dies in between, nobody answers, and the operator gets an error in the end; a command whose time is
over is never carried out. A command that is carried out twice, since the store failed before the
answer was written, does no harm: to drain again changes nothing, and a pid is never used again.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, cast

import msgspec

from perdure.base.errors import CommandRefused, ProcError, StoreError, safe_text
from perdure.base.secret import without_secrets
from perdure.engine.worker.node import WorkerNode
from perdure.engine.worker.periodic import every
from perdure.jobs.redaction import field_for_people
from perdure.jobs.wording import shorten
from perdure.jobs.worker_command import LARGEST_ANSWER, WorkerAction, WorkerAnswer, WorkerCommand
from perdure.otp.supervision.loop import SupervisedChild, loop_of
from perdure.otp.tree import full_tree
from perdure.otp.tree_picture import MOST_NODES, Json, picture
from perdure.process.api import kill
from perdure.process.event import Message
from perdure.process.hosts.remote_info import full_info
from perdure.process.introspect import Info
from perdure.process.process import Process
from perdure.process.request import Request

_log = logging.getLogger("perdure.worker")

_EVERY: Final = 3600.0  # the agenda wakes it
_PATIENCE: Final = "1s"  # for an answer of the OS processes of a worker
_FIRST_MESSAGES: Final = 20
_LONGEST_MESSAGE: Final = 200  # characters


async def answer_commands(node: WorkerNode) -> None:
    """Carry out and answer what operators ask of this worker; runs for ever."""
    work = partial(_answer_open, node)
    await every(_EVERY, work, what="answering commands", wake=node.commanded)


async def _answer_open(node: WorkerNode) -> None:
    for command in await node.store.open_commands(node.owner):
        answer = await _answer(node, command)
        await node.store.answer_command(command.id, answer)


async def _answer(node: WorkerNode, command: WorkerCommand) -> WorkerAnswer:
    _log.info("%s asks this worker: %s", command.asked_by or "somebody", command.action)
    try:
        return WorkerAnswer(data=await _carry_out(node, command))
    except (CommandRefused, ProcError) as error:
        return WorkerAnswer(refused=str(error))
    except StoreError:
        raise  # it is tried again when the store answers
    except Exception as error:  # noqa: BLE001 - whatever it was, the operator learns of it
        _log.exception("%s of this worker", command.action)
        return WorkerAnswer(refused=f"{type(error).__name__}: {safe_text(error, str)}")


async def _carry_out(node: WorkerNode, command: WorkerCommand) -> Json:
    pid = str(command.data.get("pid", ""))
    match command.action:
        case WorkerAction.DRAIN | WorkerAction.RESUME:
            return await _drain(node, resume=command.action is WorkerAction.RESUME)
        case WorkerAction.TREE:
            return await _tree(node)
        case WorkerAction.INSPECT:
            return await _inspect(node, _find(node, pid))
        case WorkerAction.KILL:
            return _kill(node, _find(node, pid))
        case WorkerAction.RESTART:
            return _restart(node, _find(node, pid))


async def _drain(node: WorkerNode, *, resume: bool) -> Json:
    if resume:
        if node.stopping:
            raise CommandRefused("this worker is stopping")
        node.resume()
    else:
        node.drain()
    await node.register()  # so that others see it
    return {"draining": node.draining, "running": len(node.claimed)}


# Processes


async def _tree(node: WorkerNode) -> Json:
    """Return the process tree, with fewer processes if the answer would be too large."""
    found, most = await full_tree(timeout=_PATIENCE), MOST_NODES
    while True:
        roots = picture(found.roots, most)
        _name_jobs(roots, _jobs_by_pid(node))
        tree = {"worker": node.owner, "os_pid": node.os_pid, "roots": roots}
        if len(msgspec.json.encode(tree)) <= LARGEST_ANSWER:
            return tree
        most //= 4


def _jobs_by_pid(node: WorkerNode) -> dict[str, Json]:
    """Return which job, and which step of it, a process works on."""
    found: dict[str, Json] = {}
    for run in node.runs.values():
        found[str(run.process.pid)] = {"job": run.job.id}
        for operation, process in run.working.items():
            found[str(process.pid)] = {"job": run.job.id, "step": operation.entry.id}
    return found


def _name_jobs(roots: Iterable[Json], jobs: dict[str, Json]) -> None:
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        each.update(jobs.get(each["pid"], {}))
        waiting += each["children"]


async def _inspect(node: WorkerNode, process: Process) -> Json:
    info = await full_info(process.pid, _PATIENCE)
    child = _supervised(process)
    return {
        "worker": node.owner,
        **_info_as_json(info),
        "restarts": 0 if child is None else child.restarts,
        "supervisor": None if child is None else str(child.supervisor.pid),
        "restart": None if child is None else str(child.spec.restart),
        "messages": [_shown_message(each) for each in process.peek_mailbox(_FIRST_MESSAGES)],
        "allow_kill": node.settings.allow_kill,
        **_jobs_by_pid(node).get(str(process.pid), {}),
    }


def _info_as_json(info: Info) -> Json:
    return {
        "pid": str(info.pid),
        "names": list(info.names),
        "function": shorten(without_secrets(info.function), _LONGEST_MESSAGE),
        "state": info.state.name.lower(),
        "age": info.age,
        "trap_links": info.trap_links,
        "mailbox": info.mailbox,
        "parent": None if info.parent is None else str(info.parent),
        "links": sorted(map(str, info.links)),
        "monitors": [str(each) for each in info.monitors],
        "monitored_by": [str(each) for each in info.monitored_by],
        "tasks": info.tasks,
        "stack": list(info.stack),
    }


def _shown_message(message: object) -> str:
    """Return a waiting message for people: short, and without secrets."""
    what, content = type(message).__name__, message
    if isinstance(message, Message):
        what, content = message.topic, message.payload
    elif isinstance(message, Request):
        what, content = "request", cast("Request[Any]", message).body
    text = safe_text(field_for_people("", content))
    return shorten(f"{what}: {without_secrets(text)}", _LONGEST_MESSAGE)


def _find(node: WorkerNode, pid: str) -> Process:
    """Return the living process of this worker, or of its hosts, with this pid as a text."""
    known: Iterable[Any] = node.runtime.processes.values()
    remote: Any = node.runtime.node
    for each in (*known, *(() if remote is None else remote.proxies.values())):
        if str(each.pid) == pid:
            return each
    raise CommandRefused(f"this worker has no process {pid}: it has ended")


def _supervised(process: Process) -> SupervisedChild | None:
    """Return the process as a child of its supervisor; None if it has none."""
    parent = None if process.parent is None else process.parent.target
    loop = loop_of(parent) if isinstance(parent, Process) else None
    children = () if loop is None else loop.children()
    return next((child for child in children if child.process is process), None)


def _kill(node: WorkerNode, process: Process) -> Json:
    if not node.settings.allow_kill:
        raise CommandRefused(
            "this worker lets nobody kill its processes: "
            "start it with WorkerSettings(allow_kill=True)"
        )
    child = _supervised(process)
    kill(process.pid)
    restarts = child is not None and str(child.spec.restart) != "temporary"
    return {"pid": str(process.pid), "killed": True, "restarts": restarts}


def _restart(node: WorkerNode, process: Process) -> Json:
    child = _supervised(process)
    if child is None or str(child.spec.restart) == "temporary":
        raise CommandRefused(f"no supervisor would start {process.pid} again")
    return _kill(node, process)
