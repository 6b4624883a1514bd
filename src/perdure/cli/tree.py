"""`perdure tree`: shows the processes of a running `perdure up`.

`snapshot` runs inside `perdure up` and returns a bounded, JSON-ready picture of its entries and
processes. It travels through the control socket, and the command prints it as a tree.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.base.errors import ProcError, describe
from perdure.cli.output import Code, Format, FormatOption, give, refuse, show
from perdure.cli.tree_lines import lines
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
