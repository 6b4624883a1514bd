"""A tree of processes as lines for people; it needs nothing of the kernel, only the picture."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from perdure.base.duration import spell

Json: TypeAlias = dict[str, Any]

_NONE: Mapping[str, Json] = {}
_BELOW = {"├─ ": "│  ", "└─ ": "   "}


def lines(shown: Json) -> Iterator[str]:
    """Yield the lines of the tree."""
    yield f"{shown['folder']}, OS process {shown['os_pid']}"
    yield from branches(shown["roots"], {entry["id"]: entry for entry in shown["entries"]})


def branches(roots: Sequence[Json], entries: Mapping[str, Json] = _NONE) -> Iterator[str]:
    """Yield the lines of some processes and all below them; `entries` are hosts and services."""
    waiting = _branches(roots, 0, "")
    while waiting:
        branch, indent, node = waiting.pop()
        if isinstance(node, str):
            yield branch + node
            continue
        entry = entries.get(node["id"])
        yield branch + _line(node, entry)
        if entry is None or entry["kind"] != "host":  # below a host are only its internals
            waiting += _branches(node["children"], node["left_out"], indent)


def _branches(
    nodes: Sequence[Json], left_out: int, indent: str
) -> list[tuple[str, str, Json | str]]:
    """Return the branches below a node, last first."""
    below: list[Json | str] = [*nodes, *([f"… {left_out} more"] if left_out else [])]
    ends = ["├─ "] * (len(below) - 1) + ["└─ "]
    drawn = [
        (indent + end, indent + _BELOW[end], node)
        for node, end in zip(below, ends[-len(below) :], strict=False)
    ]
    return drawn[::-1]


def _line(node: Json, entry: Json | None) -> str:
    name = node["id"] or node["label"]
    texts = _describe(node) if entry is None else describe_entry(entry)
    pid = (
        node["pid"] if entry is None else ""
    )  # the pid of an entry's internal process means nothing to people
    return "  ".join(filter(None, [name, pid, ", ".join(texts)]))


def _describe(node: Json) -> Iterator[str]:
    yield node["state"]
    if "job" in node:
        yield f"{node.get('step', 'the code')} of job {node['job']}"
    if node["age"] is not None:
        yield f"age {spell(round(node['age'], 1))}"
    if node["restarts"]:
        yield f"restarts {node['restarts']}"
    if node["mailbox"]:
        yield f"mailbox {node['mailbox']}"


_WORKERS = {"inline": "inline", "threads": "{} threads", "os": "{} OS processes"}


def describe_entry(entry: Json) -> Iterator[str]:
    """Yield the state of a host or a service, in words."""
    yield f"{entry['kind']} {entry['state']}"
    if entry["kind"] == "host":
        yield _WORKERS[entry["host"]].format(entry["workers"])
    else:
        yield from _describe_service(entry)


def _describe_service(entry: Json) -> Iterator[str]:
    if entry["pid"]:
        yield entry["pid"] + (f" on {entry['host']}" if entry["host"] else "")
    if entry["restarts"]:
        yield f"restarts {entry['restarts']}"
    if entry["error"]:
        yield f"last error: {entry['error']}"
