"""`perdure up`: runs the entries of a folder until it is asked to stop."""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from perdure.base import telemetry
from perdure.base.clock import Clock, SystemClock
from perdure.base.duration import spell
from perdure.base.errors import EntriesError, ProcError, ProcessExit, describe
from perdure.base.settings import Settings
from perdure.base.telemetry import Event, Values
from perdure.base.visible import visible
from perdure.cli.control_socket import open_door, runtime_folder, socket_of
from perdure.cli.output import Code, WholeLines, as_json, cell, console, refuse
from perdure.cli.target import import_from_here
from perdure.cli.tree import draw
from perdure.entries.load import Loaded, load_yaml
from perdure.entries.service import ENTRY_EVENT
from perdure.otp.tree import full_tree
from perdure.process.api import events
from perdure.process.channel import select
from perdure.process.runtime import run

# What `perdure up` tells: one line for each thing that happens to an entry.

_STYLES = {
    "running": "green",
    "restarting": "yellow",
    "failed": "bold red",
    "exited": "cyan",
    "stopped": "dim",
}
_NOT_TOLD = ("starting", "stopping")  # what follows says enough to people


class UpLog:
    """Tells what happens, for people or for programs."""

    def __init__(self, console: Console, clock: Clock, *, json: bool, width: int) -> None:
        """Tell on a console.

        Args:
            console: Where.
            clock: What time it is.
            json: For programs: a JSON object on each line.
            width: Of the longest id.
        """
        self._console = console
        self._clock = clock
        self._json = json
        self._width = width

    def entry(self, _event: Event, _numbers: Values, facts: Values, _config: object) -> None:
        """Tell the new state of an entry; a telemetry handler."""
        if self._json:
            self._line({"event": "entry", **_for_programs(facts)})
        elif facts["state"] not in _NOT_TOLD:
            state = str(facts["state"])
            text = Text.assemble(
                f"{facts['id']:<{self._width}}  ", (f"{state:<10}", _STYLES.get(state, ""))
            )
            self._say(text.append("  " + visible(_for_people(facts), None)))

    def say(self, event: str, text: str, **facts: object) -> None:
        """Tell something about the whole."""
        if self._json:
            self._line({"event": event, **facts})
        else:
            self._say(cell(text))

    def _say(self, text: Text) -> None:
        moment = datetime.fromtimestamp(self._clock.time()).astimezone()
        line = Text.assemble((f"{moment:%H:%M:%S}  ", "dim"), text)
        line.rstrip()
        with self._read_or_not():
            self._console.print(line, soft_wrap=True)

    def _line(self, facts: Mapping[str, Any]) -> None:
        line = as_json({"time": self._clock.time(), **facts})
        with self._read_or_not():
            self._console.out(line, highlight=False)

    @contextmanager
    def _read_or_not(self) -> Generator[None, None, None]:
        """Fall silent when nobody reads any more: what runs must not suffer from that."""
        try:
            yield
        except (BrokenPipeError, SystemExit):  # the latter is how `rich` tells of it
            self._console.quiet = True


def _for_programs(facts: Values) -> dict[str, Any]:
    reason = facts.get("reason")
    told = {key: value for key, value in facts.items() if value is not None}
    return {**told, "reason": describe(reason)} if isinstance(reason, BaseException) else told


def _for_people(facts: Values) -> str:
    spelled: dict[str, Callable[[], str]] = {
        "running": lambda: _where(facts),
        "restarting": lambda: f"{_why(facts)}; {_again(facts)}",
        "failed": lambda: _why(facts) + _given_up(facts),
    }
    return spelled.get(str(facts["state"]), str)()


def _where(facts: Values) -> str:
    if "workers" in facts:
        return f"{facts['kind']}, {_counted(facts['workers'], 'worker')}"
    where = f" on {facts['host']}" if facts.get("host") else ""
    return f"{facts['pid']}{where}"


def _why(facts: Values) -> str:
    return describe(facts["reason"])


def _again(facts: Values) -> str:
    delay = float(f"{facts['delay']:.3g}")
    which = f"start {facts['starts'] + 1}" if facts["starts"] else "again"  # it had been stable
    return f"{which} in {spell(delay)}"


def _given_up(facts: Values) -> str:
    return f"; given up after {_counted(facts['starts'], 'start')}" if "starts" in facts else ""


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


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
    news = UpLog(screen, SystemClock(), json=json, width=width)
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


def _run(folder: Path, loaded: Loaded, news: UpLog) -> int:
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
    """Return the time that an orderly stop may take: one entry stops after another."""
    plans = [*loaded.plan.hosts.values(), *loaded.plan.services.values()]
    return sum(plan.lifecycle.stop_timeout for plan in plans) + SPARE


async def _serve(folder: Path, loaded: Loaded, news: UpLog) -> Code:
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
