"""`perdure tree`: shows the processes of a running `perdure up`.

`snapshot` runs inside `perdure up` and returns a bounded, JSON-ready picture of its entries and
processes. It travels through the control socket, and the command prints it as a tree.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.base.duration import spell
from perdure.base.errors import ProcError, describe
from perdure.cli.output import Code, Format, FormatOption, give, refuse, show
from perdure.entries.control_socket import ask, ask_all, runtime_folder, socket_of
from perdure.entries.load import Loaded
from perdure.otp.tree import Tree
from perdure.otp.tree_picture import Json, picture


def snapshot(folder: str, loaded: Loaded, tree: Tree) -> Json:
    """Return the entries and the processes."""
    return {
        "folder": folder,
        "os_pid": os.getpid(),
        "entries": [*_hosts(loaded), *_services(loaded)],
        "roots": picture(tree.roots),
    }


def _hosts(loaded: Loaded) -> Iterator[Json]:
    for id, host in loaded.hosts.items():
        state = "running" if host.running else "stopped"
        size = {"host": loaded.plan.hosts[id].size.kind, "workers": host.workers}
        yield {"id": id, "kind": "host", "state": state, **size}


def _services(loaded: Loaded) -> Iterator[Json]:
    for id, service in loaded.services.items():
        yield {
            "id": id,
            "kind": "service",
            "state": service.state.value,
            "pid": None if service.pid is None else str(service.pid),
            "host": service.plan.host,
            "restarts": service.restarts,
            "error": None if service.error is None else describe(service.error),
        }


# The tree for people.

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


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tree")(tree)


def tree(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]", help="The folder of the entries; needed only if several run."
        ),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the process tree of a running `perdure up`."""
    try:
        runtime = runtime_folder(os.environ)
        found = _the_only_one(runtime) if folder is None else ask(socket_of(folder, runtime))
    except ProcError as error:
        refuse(str(error), Code.FAILED)
    if found is None:
        what = (
            "no `perdure up` is running"
            if folder is None
            else f"`perdure up {folder}` is not running"
        )
        refuse(what, Code.NOT_RUNNING)
    if output is Format.JSON:
        give(found, indent=2)
    else:
        show(*lines(found))


def _the_only_one(runtime: Path) -> dict[str, Any] | None:
    answers = ask_all(runtime)
    if len(answers) > 1:
        folders = "".join(f"\n  perdure tree {answer['folder']}" for answer in answers)
        refuse(f"several are running, name the folder:{folders}", Code.USAGE)
    return answers[0] if answers else None
