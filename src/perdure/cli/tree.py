"""`perdure tree`: what runs in a `perdure up`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.base.errors import ProcError
from perdure.cli.door import ask, everybody, runtime_folder, socket_of
from perdure.cli.output import Code, Format, FormatOption, give, refuse, say
from perdure.cli.picture import lines


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tree")(tree)


def tree(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The folder of the entries; not needed for one."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show the tree of processes of a running `perdure up`."""
    try:
        runtime = runtime_folder(os.environ)
        picture = _the_only_one(runtime) if folder is None else ask(socket_of(folder, runtime))
    except ProcError as error:
        refuse(str(error), Code.FAILED)
    if picture is None:
        what = "no `perdure up` runs" if folder is None else f"no `perdure up {folder}` runs"
        refuse(what, Code.NOT_RUNNING)
    if output is Format.JSON:
        give(picture, indent=2)
    else:
        say(*lines(picture))


def _the_only_one(runtime: Path) -> dict[str, Any] | None:
    answers = everybody(runtime)
    if len(answers) > 1:
        folders = "".join(f"\n  perdure tree {answer['folder']}" for answer in answers)
        refuse(f"more than one runs, name the folder:{folders}", Code.USAGE)
    return answers[0] if answers else None
