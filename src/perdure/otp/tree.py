"""`tree()`: the running processes, their supervisors, what they wait for, and their restarts.

print(tree())                # for people
print(tree().json())         # for programs
print(await full_tree())     # with all that workers of hosts know
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from perdure.base.duration import Duration, required_seconds, spell
from perdure.base.pid import Pid
from perdure.otp.address import ServerRef, pid_of
from perdure.otp.supervision.loop import RestartLoop, SupervisedChild, loop_of
from perdure.process.api import resolve_alive
from perdure.process.hosts.remote_info import RemoteInfos, remote_infos
from perdure.process.introspect import Info, info_of
from perdure.process.process import Process, ProcessRuntime, RemoteProcess, current

_PACKAGE = str(Path(__file__).parent.parent)  # our own frames say nothing about the user's code

Kind = Literal["process", "worker", "supervisor"]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One process in the tree, or a child of a supervisor that does not run now.

    Attributes:
        id: Its id in its supervisor; None if it is not a child.
        kind: "supervisor", "worker" (another child of a supervisor) or "process".
        label: Its names, or else the function that it runs.
        state: As in `process.info`; "elsewhere" on another host, "blocked" if that host does
            not answer; "restarting" or "not running".
        restarts: How often its supervisor restarted it.
        info: All that is known about the process, with its stack; None if it does not run.
        children: Those it started, the oldest first.
    """

    id: Any
    kind: Kind
    label: str
    state: str
    restarts: int
    info: Info | None
    children: tuple["TreeNode", ...]

    @property
    def pid(self) -> Pid | None:
        """Its process; None if it does not run."""
        return None if self.info is None else self.info.pid

    @property
    def awaits(self) -> str | None:
        """The innermost line of its own code in which it waits; None if there is none."""
        stack = () if self.info is None else self.info.stack
        return next((line for line in reversed(stack) if not line.startswith(_PACKAGE)), None)

    def __iter__(self) -> "Iterator[TreeNode]":
        """Iterate over this node and all below it."""
        waiting: list[TreeNode] = [self]
        while waiting:  # no recursion here and below: a chain of processes may be long
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def as_dict(self) -> dict[str, Any]:
        """Return the node as plain values, ready for JSON."""
        own = {"id": _plain(self.id), "kind": self.kind, "label": self.label, "state": self.state}
        below = [child.as_dict() for child in self.children]
        return {**own, "restarts": self.restarts, **_process_as_dict(self), "children": below}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclass(frozen=True, slots=True)
class Tree:
    """The processes of a runtime: those without a living parent, with all below them."""

    roots: tuple[TreeNode, ...]

    def __iter__(self) -> Iterator[TreeNode]:
        """Iterate over all processes."""
        return chain.from_iterable(self.roots)

    def as_dict(self) -> dict[str, Any]:
        """Return the tree as plain values, ready for JSON."""
        return {"roots": [root.as_dict() for root in self.roots]}

    def json(self, indent: int | None = None) -> str:
        """Return the tree as JSON."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False)

    def find(self, wanted: object) -> TreeNode | None:
        """Return the first process with this pid, name or id; None if there is none."""
        return next((node for node in self if _is(node, wanted)), None)

    def __str__(self) -> str:
        return "\n".join(map(str, self.roots))


def tree(root: ServerRef | None = None) -> Tree:
    """Return a snapshot of all processes as a tree, or of one and all below it.

    For processes on threads and OS workers it shows only what this loop knows; see `full_tree`.

    Raises:
        NoProcess: The process is dead.
    """
    return _taken(current("tree").runtime, root, RemoteInfos({}, frozenset()))


async def full_tree(root: ServerRef | None = None, timeout: Duration = "1s") -> Tree:
    """Return a snapshot like `tree`, and ask the workers of hosts about their processes.

    Those of a worker that does not answer in time have the state "blocked".

    Raises:
        NoProcess: The process is dead.
    """
    runtime = current("full_tree").runtime
    return _taken(runtime, root, await remote_infos(runtime, required_seconds(timeout)))


def _taken(runtime: ProcessRuntime, root: ServerRef | None, sight: RemoteInfos) -> Tree:
    subjects = _subjects(runtime, sight)
    if root is not None:
        roots = [subjects[resolve_alive(pid_of(root, "tree"), "look at it").pid]]
    else:
        roots = [each for each in subjects.values() if each.info.parent not in subjects]
    return Tree(tuple(_make_nodes(subjects.values(), roots)))


class _Subject(NamedTuple):
    """A process in the tree; if a worker started it itself, only its info is known."""

    info: Info
    state: str
    process: Process | None

    @property
    def loop(self) -> RestartLoop | None:
        return None if self.process is None else loop_of(self.process)


Started = list[tuple[_Subject, TreeNode]]  # those below a process, and their nodes


def _subjects(runtime: ProcessRuntime, sight: RemoteInfos) -> dict[Pid, _Subject]:
    """Return the processes of this loop, and those on other hosts, the oldest first."""
    found = {each.pid: _subject(each, sight) for each in _all_of(runtime)}
    for pid, info in sight.infos.items():
        found.setdefault(pid, _Subject(info, info.state.name.lower(), None))
    return found


def _subject(process: Process, sight: RemoteInfos) -> _Subject:
    info = sight.infos.get(process.pid)
    if info is None:
        info = info_of(process)
        if isinstance(process, RemoteProcess):
            return _Subject(
                info, "blocked" if process.pid in sight.blocked else "elsewhere", process
            )
    return _Subject(info, info.state.name.lower(), process)


def _all_of(runtime: ProcessRuntime) -> list[Process]:
    """Return its processes, and the proxies of those on other hosts, the oldest first."""
    found = list(runtime.processes.values())
    if runtime.node is not None:
        # Without a parent it is the proxy of a process that is only known by its pid.
        found += [each for each in runtime.node.proxies.values() if each.parent is not None]
        found.sort(key=lambda each: each.spawned_at)
    return found


def _make_nodes(subjects: Collection[_Subject], roots: Sequence[_Subject]) -> list[TreeNode]:
    """Return the nodes of some processes, with all below them."""
    supervised = {
        child.process: child
        for each in subjects
        for child in _children_of(each.loop)
        if child.process is not None
    }
    below: dict[Pid | None, list[_Subject]] = {}
    for each in subjects:
        below.setdefault(each.info.parent, []).append(each)
    order = list(roots)
    for each in order:  # it grows meanwhile, until all below are in it
        order += below.get(each.info.pid, ())
    nodes: dict[Pid, TreeNode] = {}
    for each in reversed(order):
        started = [(child, nodes[child.info.pid]) for child in below.get(each.info.pid, ())]
        child = None if each.process is None else supervised.get(each.process)
        nodes[each.info.pid] = _node(each, child, started)
    return [nodes[each.info.pid] for each in roots]


def _node(subject: _Subject, child: SupervisedChild | None, started: Started) -> TreeNode:
    loop, info = subject.loop, subject.info
    return TreeNode(
        id=None if child is None else child.spec.id,
        kind=_kind(loop, child),
        label=", ".join(info.names) or _activity(loop, info),
        state=subject.state,
        restarts=0 if child is None else child.restarts,
        info=info,
        children=_nodes_below(_children_of(loop), started),
    )


def _nodes_below(children: list[SupervisedChild], started: Started) -> tuple[TreeNode, ...]:
    """Return the children of a supervisor in start order, then what else a process started."""
    running = {each.process: node for each, node in started if each.process is not None}
    supervised = [
        _absent(child) if child.process is None else running.get(child.process) or _absent(child)
        for child in children
    ]
    wanted = {child.process for child in children if child.process is not None}
    others = [node for each, node in started if each.process not in wanted]
    return (*supervised, *others)


def _children_of(loop: RestartLoop | None) -> list[SupervisedChild]:
    return [] if loop is None else list(loop.children())


def _activity(loop: RestartLoop | None, info: Info) -> str:
    return info.function.split("(", maxsplit=1)[0] if loop is None else loop.label


def _absent(child: SupervisedChild) -> TreeNode:
    state = "restarting" if child.restarting or child.process is not None else "not running"
    kind: Kind = "supervisor" if child.spec.type == "supervisor" else "worker"
    return TreeNode(child.spec.id, kind, "", state, child.restarts, None, ())


def _kind(loop: RestartLoop | None, child: SupervisedChild | None) -> Kind:
    if loop is not None or (child is not None and child.spec.type == "supervisor"):
        return "supervisor"
    return "process" if child is None else "worker"


def _is(node: TreeNode, wanted: object) -> bool:
    names = node.info.names if node.info is not None else ()
    return node.pid is wanted or wanted in names or (node.id is not None and node.id == wanted)


# For programs


def _process_as_dict(node: TreeNode) -> dict[str, Any]:
    info = node.info
    if info is None:
        return {"pid": None}
    return {
        "pid": str(info.pid),
        "names": list(info.names),
        "function": info.function,
        "age": info.age,
        "mailbox": info.mailbox,
        "links": sorted(map(str, info.links)),
        "awaits": node.awaits,
        "stack": list(info.stack),
    }


def _plain(id: object) -> object:
    return id if id is None or isinstance(id, str | int | float | bool) else str(id)


# For people

_BELOW = {"├─ ": "│  ", "└─ ": "   "}


def _lines(root: TreeNode) -> Iterator[str]:
    waiting = [(root, "", "")]
    while waiting:
        node, branch, indent = waiting.pop()
        yield branch + _line(node)
        ends = ["├─ "] * (len(node.children) - 1) + ["└─ "]
        drawn = zip(node.children, ends[-len(node.children) :], strict=False)
        below = [(child, indent + end, indent + _BELOW[end]) for child, end in drawn]
        waiting.extend(reversed(below))


def _line(node: TreeNode) -> str:
    words = ["" if node.id is None else f"{node.id}:", str(node.pid or ""), node.label]
    facts = [node.kind, node.state]
    if node.restarts:
        facts.append(f"restarts {node.restarts}")
    if node.info is not None:
        facts += _facts(node.info)
    waits = f" at {node.awaits}" if node.awaits else ""
    return f"{' '.join(filter(None, words))} ({', '.join(facts)}){waits}"


def _facts(info: Info) -> list[str]:
    return [
        f"age {spell(round(info.age, 1))}",
        f"mailbox {info.mailbox}",
        f"links {len(info.links)}",
    ]
