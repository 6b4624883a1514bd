"""`tree()`: who runs under whom, what they wait for, and how often they were restarted.

print(tree())            # for people
print(tree().json())     # for programs
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from perdure.base.duration import spell
from perdure.base.pid import Pid
from perdure.otp.oversight import Oversight, oversight_of
from perdure.otp.ref import ServerRef, pid_of
from perdure.otp.ward import Ward
from perdure.process.current import current
from perdure.process.introspect import Info, picture
from perdure.process.messaging import alive_or_raise
from perdure.process.process import Process
from perdure.process.reach import Elsewhere
from perdure.process.runtime import Runtime

_PACKAGE = str(Path(__file__).parent.parent)  # frames of ours say nothing about a user's code

Kind = Literal["process", "worker", "supervisor"]


@dataclass(frozen=True, slots=True)
class Node:
    """One process in the tree, or a child of a supervisor that does not run now.

    Attributes:
        id: Its id in its supervisor; None if it is nobody's child.
        kind: "supervisor", "worker" (another child of a supervisor) or "process".
        label: Its names, or else the function that it runs.
        state: As in `process.info`, "elsewhere" on another host, "restarting" or "not running".
        restarts: How often its supervisor started it again.
        info: The whole picture of the process, with its stack; None if it does not run.
        children: Those it started, the oldest first.
    """

    id: Any
    kind: Kind
    label: str
    state: str
    restarts: int
    info: Info | None
    children: tuple["Node", ...]

    @property
    def pid(self) -> Pid | None:
        """Its process."""
        return None if self.info is None else self.info.pid

    @property
    def awaits(self) -> str | None:
        """The innermost line of its own code in which it waits; None if there is none."""
        stack = () if self.info is None else self.info.stack
        return next((line for line in reversed(stack) if not line.startswith(_PACKAGE)), None)

    def __iter__(self) -> "Iterator[Node]":
        """Go through it and all below it."""
        waiting: list[Node] = [self]
        while waiting:  # no recursion here and below: a chain of processes may be long
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def as_dict(self) -> dict[str, Any]:
        """Give it as plain values, ready for JSON."""
        own = {"id": _plain(self.id), "kind": self.kind, "label": self.label, "state": self.state}
        below = [child.as_dict() for child in self.children]
        return {**own, "restarts": self.restarts, **_process_as_dict(self), "children": below}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclass(frozen=True, slots=True)
class Tree:
    """The processes of a runtime: those that nobody alive started, with all below them."""

    roots: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        """Go through all processes."""
        return chain.from_iterable(self.roots)

    def as_dict(self) -> dict[str, Any]:
        """Give it as plain values, ready for JSON."""
        return {"roots": [root.as_dict() for root in self.roots]}

    def json(self, indent: int | None = None) -> str:
        """Give it as JSON."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False)

    def find(self, wanted: object) -> Node | None:
        """Give the first process with this pid, name or id."""
        return next((node for node in self if _is(node, wanted)), None)

    def __str__(self) -> str:
        return "\n".join(map(str, self.roots))


def tree(root: ServerRef | None = None) -> Tree:
    """Take a picture of all processes as a tree, or of one and all below it.

    Raises:
        NoProcess: The process is dead.
    """
    processes = _all_of(current("tree").runtime)
    if root is not None:
        roots = [alive_or_raise(pid_of(root, "tree"), "look at it")]
    else:
        roots = [each for each in processes if _is_root(each)]
    nodes = _drawn(processes)
    return Tree(tuple(nodes[each] for each in roots))


def _all_of(runtime: Runtime) -> list[Process]:
    """Give its processes, and what stands in for those on other hosts, the oldest first."""
    found = list(runtime.processes.values())
    if runtime.node is not None:
        # Without a parent it stands in for somebody who was only heard of.
        found += [each for each in runtime.node.stand_ins.values() if each.parent is not None]
        found.sort(key=lambda each: each.born)
    return found


def _is_root(process: Process) -> bool:
    return process.parent is None or process.parent.target is None


def _drawn(processes: Sequence[Process]) -> dict[Process, Node]:
    """Draw all processes, the youngest first: whom a process started is younger than itself."""
    wards = {
        ward.process: ward
        for each in processes
        for ward in _wards_of(oversight_of(each))
        if ward.process is not None
    }
    below: dict[Pid | None, list[Process]] = {}
    for each in processes:
        below.setdefault(each.parent, []).append(each)
    nodes: dict[Process, Node] = {}
    for each in reversed(processes):
        started = {child: nodes[child] for child in below.get(each.pid, ())}
        nodes[each] = _node(each, wards.get(each), started)
    return nodes


def _node(process: Process, ward: Ward | None, started: dict[Process, Node]) -> Node:
    oversight, info = oversight_of(process), picture(process)
    return Node(
        id=None if ward is None else ward.spec.id,
        kind=_kind(oversight, ward),
        label=", ".join(info.names) or _activity(oversight, info),
        state="elsewhere" if isinstance(process, Elsewhere) else info.state.name.lower(),
        restarts=0 if ward is None else ward.restarts,
        info=info,
        children=_children(_wards_of(oversight), started),
    )


def _children(wards: list[Ward], started: dict[Process, Node]) -> tuple[Node, ...]:
    """Give the children of a supervisor in start order, then what else a process started."""
    supervised = [
        _absent(ward) if ward.process is None else started.pop(ward.process, _absent(ward))
        for ward in wards
    ]
    return (*supervised, *started.values())


def _wards_of(oversight: Oversight | None) -> list[Ward]:
    return [] if oversight is None else list(oversight.wards())


def _activity(oversight: Oversight | None, info: Info) -> str:
    return info.function.split("(", maxsplit=1)[0] if oversight is None else oversight.label


def _absent(ward: Ward) -> Node:
    state = "restarting" if ward.restarting or ward.process is not None else "not running"
    kind: Kind = "supervisor" if ward.spec.type == "supervisor" else "worker"
    return Node(ward.spec.id, kind, "", state, ward.restarts, None, ())


def _kind(oversight: Oversight | None, ward: Ward | None) -> Kind:
    if oversight is not None or (ward is not None and ward.spec.type == "supervisor"):
        return "supervisor"
    return "process" if ward is None else "worker"


def _is(node: Node, wanted: object) -> bool:
    names = node.info.names if node.info is not None else ()
    return node.pid is wanted or wanted in names or (node.id is not None and node.id == wanted)


# For programs


def _process_as_dict(node: Node) -> dict[str, Any]:
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


def _lines(root: Node) -> Iterator[str]:
    waiting = [(root, "", "")]
    while waiting:
        node, branch, indent = waiting.pop()
        yield branch + _line(node)
        ends = ["├─ "] * (len(node.children) - 1) + ["└─ "]
        drawn = zip(node.children, ends[-len(node.children) :], strict=False)
        below = [(child, indent + end, indent + _BELOW[end]) for child, end in drawn]
        waiting.extend(reversed(below))


def _line(node: Node) -> str:
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
