"""`perdure up`: runs the entries of a folder until it is asked to stop."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO, cast

import msgspec
import typer

from perdure.base import telemetry
from perdure.base.clock import SystemClock
from perdure.base.errors import EntriesError, ProcError, ProcessExit, describe
from perdure.base.settings import Settings
from perdure.cli.current_folder import import_from_here
from perdure.cli.door import open_door, runtime_folder, socket_of
from perdure.cli.news import News
from perdure.cli.output import Code, console, refuse
from perdure.cli.picture import draw
from perdure.cli.whole_lines import WholeLines
from perdure.entries.guardian import ENTRY_EVENT
from perdure.entries.load import load_yaml
from perdure.entries.loaded import Loaded
from perdure.otp.tree import full_tree
from perdure.process.channel import select
from perdure.process.messaging import events
from perdure.process.run import run

HANDLER = "perdure.cli.up"
SPARE = 5.0  # seconds beyond the time-outs of all entries, before everything is killed


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with _index.yaml files.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="A JSON object for each event.")] = False,
) -> None:
    """Run the entries of a folder: start what is marked, supervise it, stop it in reverse order.

    It ends on Ctrl-C and on SIGTERM, and by itself when every service has ended.
    """
    try:
        loaded = load_yaml(folder)
    except EntriesError as error:
        refuse(str(error), Code.USAGE)
    if not any(id in loaded.services for id in loaded.plan.order):
        refuse(f"no service in {folder} is marked with `auto_start: true`", Code.USAGE)
    import_from_here()
    logging.basicConfig(format="%(asctime)s  %(levelname)s  %(message)s", datefmt="%H:%M:%S")
    width = max(map(len, loaded.plan.order))
    screen = console(_own_output() if json else _shared_output())
    news = News(screen, SystemClock(), json=json, width=width)
    raise typer.Exit(_run(folder.resolve(), loaded, news))


def _own_output() -> TextIO:
    """Take the standard output for us alone: what services print goes to standard error."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


def _shared_output() -> TextIO:
    """Let what services print be seen at once and line by line, also through a pipe."""
    sys.stdout = cast("TextIO", WholeLines(sys.stdout))
    return sys.stdout


def _run(folder: Path, loaded: Loaded, news: News) -> int:
    telemetry.attach(HANDLER, ENTRY_EVENT, news.entry)
    try:
        return run(_serve, folder, loaded, news, settings=Settings(stop_timeout=_patience(loaded)))
    except EntriesError as error:
        refuse(str(error), Code.USAGE)
    except (ProcError, ProcessExit) as error:
        refuse(describe(error), Code.FAILED)
    except KeyboardInterrupt:
        return 130  # before it was up
    finally:
        telemetry.detach(HANDLER)


def _patience(loaded: Loaded) -> float:
    """Give the time that an orderly stop may take: one entry stops after another."""
    plans = [*loaded.plan.hosts.values(), *loaded.plan.services.values()]
    return sum(plan.lifecycle.stop_timeout for plan in plans) + SPARE


async def _serve(folder: Path, loaded: Loaded, news: News) -> Code:
    async with _door(folder, loaded), loaded:
        news.say("up", "Up. Ctrl-C stops it.", folder=str(folder))
        # Not before: a signal while things start is to interrupt the start.
        told = await select(events(), loaded.over)
        asked = told.channel is not loaded.over
        text = "Stopping, the last started first." if asked else "Every service has ended."
        news.say("stopping", text)
        failed = loaded.failed()
    news.say("down", "Down.", failed=[service.plan.id for service in failed])
    return Code.FAILED if failed and not asked else Code.OK


@contextlib.asynccontextmanager
async def _door(folder: Path, loaded: Loaded) -> AsyncGenerator[None, None]:
    """Let `perdure tree` look in, where the system has such sockets."""
    if not hasattr(socket, "AF_UNIX"):
        yield
        return
    path = socket_of(folder, runtime_folder(os.environ))
    async with open_door(path, partial(_answer, str(folder), loaded)):
        yield


async def _answer(folder: str, loaded: Loaded) -> bytes:
    return msgspec.json.encode(draw(folder, loaded, await full_tree()))
