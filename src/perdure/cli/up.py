"""`perdure up`: runs the entries of a folder until it is told to stop, and logs what happens."""

import contextlib
import io
import logging
import os
import socket
import sys
import threading
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
from perdure.cli.output import Code, as_json, cell, console, refuse
from perdure.cli.target import import_from_here
from perdure.cli.tree import snapshot
from perdure.entries.control_socket import runtime_folder, serve_at, socket_of
from perdure.entries.load import Loaded, load_yaml
from perdure.entries.service import ENTRY_EVENT
from perdure.otp.tree import full_tree
from perdure.process.api import events
from perdure.process.channel import select
from perdure.process.runtime import run

HANDLER = "perdure.cli.up"
SPARE = 5.0  # seconds beyond the stop timeouts of all entries, before everything is killed


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with _index.yaml files.")],
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object for each event.")
    ] = False,
) -> None:
    """Run the entries of a folder: start, supervise, and stop them in reverse order.

    Ends on Ctrl-C and SIGTERM, and when every service has ended.
    """
    try:
        loaded = load_yaml(folder)
    except EntriesError as error:
        refuse(str(error), Code.USAGE)
    if not any(id in loaded.services for id in loaded.plan.order):
        refuse(f"no service in {folder} has `auto_start: true`", Code.USAGE)
    import_from_here()
    logging.basicConfig(format="%(asctime)s  %(levelname)s  %(message)s", datefmt="%H:%M:%S")
    width = max(map(len, loaded.plan.order))
    screen = console(_own_output() if json else _shared_output())
    log = UpLog(screen, SystemClock(), json=json, width=width)
    raise typer.Exit(_run(folder.resolve(), loaded, log))


def _own_output() -> TextIO:
    """Reserve standard output for the log; what services print goes to standard error."""
    sys.stdout.flush()
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return ours


def _shared_output() -> TextIO:
    """Return a standard output on which whole lines appear at once, even through a pipe."""
    sys.stdout = cast("TextIO", LineWriter(sys.stdout))
    return sys.stdout


def _run(folder: Path, loaded: Loaded, log: "UpLog") -> int:
    telemetry.attach(HANDLER, ENTRY_EVENT, log.entry)
    try:
        return run(_serve, folder, loaded, log, settings=Settings(stop_timeout=_patience(loaded)))
    except EntriesError as error:
        refuse(str(error), Code.USAGE)
    except (ProcError, ProcessExit) as error:
        refuse(describe(error), Code.FAILED)
    except KeyboardInterrupt:
        return Code.INTERRUPTED  # before it was up
    finally:
        telemetry.detach(HANDLER)


def _patience(loaded: Loaded) -> float:
    """Return how long an orderly stop may take: entries stop one after the other."""
    plans = [*loaded.plan.hosts.values(), *loaded.plan.services.values()]
    return sum(plan.lifecycle.stop_timeout for plan in plans) + SPARE


async def _serve(folder: Path, loaded: Loaded, log: "UpLog") -> Code:
    async with _control_socket(folder, loaded), loaded:
        log.say("up", "Up. Press Ctrl-C to stop.", folder=str(folder))
        # Only from here on: a signal during the start must interrupt the start.
        first = await select(events(), loaded.over)
        asked = first.channel is not loaded.over
        text = "Stopping in reverse order." if asked else "Every service has ended."
        log.say("stopping", text)
        failed = loaded.failed()
    log.say("down", "Down.", failed=[service.plan.id for service in failed])
    return Code.FAILED if failed and not asked else Code.OK


@contextlib.asynccontextmanager
async def _control_socket(folder: Path, loaded: Loaded) -> AsyncGenerator[None, None]:
    """Answer `perdure tree` inside the block, where the system has Unix sockets."""
    if not hasattr(socket, "AF_UNIX"):
        yield
        return
    path = socket_of(folder, runtime_folder(os.environ))
    async with serve_at(path, partial(_answer, str(folder), loaded)):
        yield


async def _answer(folder: str, loaded: Loaded) -> bytes:
    return msgspec.json.encode(snapshot(folder, loaded, await full_tree()))


# The log: one line for each change of an entry.

_STYLES = {
    "running": "green",
    "restarting": "yellow",
    "failed": "bold red",
    "exited": "cyan",
    "stopped": "dim",
}
_NOT_LOGGED = ("starting", "stopping")  # for people; the next state says enough


class UpLog:
    """Prints what happens, for people or for programs."""

    def __init__(self, console: Console, clock: Clock, *, json: bool, width: int) -> None:
        """Print on a console.

        Args:
            console: The console.
            clock: The source of the times.
            json: Print a JSON object on each line, for programs.
            width: The width of the longest id.
        """
        self._console = console
        self._clock = clock
        self._json = json
        self._width = width

    def entry(self, _event: Event, _numbers: Values, facts: Values, _config: object) -> None:
        """Print the new state of an entry; a telemetry handler."""
        if self._json:
            self._line({"event": "entry", **_for_programs(facts)})
        elif facts["state"] not in _NOT_LOGGED:
            state = str(facts["state"])
            text = Text.assemble(
                f"{facts['id']:<{self._width}}  ", (f"{state:<10}", _STYLES.get(state, ""))
            )
            self._say(text.append("  " + visible(_for_people(facts), None)))

    def say(self, event: str, text: str, **facts: object) -> None:
        """Print an event of the whole program."""
        if self._json:
            self._line({"event": event, **facts})
        else:
            self._say(cell(text))

    def _say(self, text: Text) -> None:
        moment = datetime.fromtimestamp(self._clock.time()).astimezone()
        line = Text.assemble((f"{moment:%H:%M:%S}  ", "dim"), text)
        line.rstrip()
        with self._if_read():
            self._console.print(line, soft_wrap=True)

    def _line(self, facts: Mapping[str, Any]) -> None:
        line = as_json({"time": self._clock.time(), **facts})
        with self._if_read():
            self._console.out(line, highlight=False)

    @contextmanager
    def _if_read(self) -> Generator[None, None, None]:
        """Stop printing when nobody reads the output, so that the services do not fail."""
        try:
            yield
        except (BrokenPipeError, SystemExit):  # `rich` turns the first into the second
            self._console.quiet = True
            # What is still in the buffer would be written, and refused again, as the program ends.
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._console.file.fileno())


def _for_programs(facts: Values) -> dict[str, Any]:
    reason = facts.get("reason")
    given = {key: value for key, value in facts.items() if value is not None}
    return {**given, "reason": describe(reason)} if isinstance(reason, BaseException) else given


def _for_people(facts: Values) -> str:
    spelled: dict[str, Callable[[], str]] = {
        "running": lambda: _where(facts),
        "restarting": lambda: f"{_why(facts)}; {_again(facts)}",
        "failed": lambda: _why(facts) + _gave_up(facts),
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
    which = (
        f"start {facts['starts'] + 1}" if facts["starts"] else "again"
    )  # after a stable time the count starts anew
    return f"{which} in {spell(delay)}"


def _gave_up(facts: Values) -> str:
    return f"; gave up after {_counted(facts['starts'], 'start')}" if "starts" in facts else ""


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


class LineWriter(io.TextIOBase):
    """Passes on whole lines only, each in one write.

    `print` writes a text and the end of its line separately, and the output of another thread could
    come between them.
    """

    def __init__(self, below: TextIO) -> None:
        """Write to the stream below."""
        self._below = below
        self._lock = threading.Lock()
        self._partial = threading.local()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the stream below."""
        return self._below.encoding

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._below.isatty()

    def fileno(self) -> int:
        return self._below.fileno()

    def write(self, text: str, /) -> int:
        lines, end, rest = (getattr(self._partial, "text", "") + text).rpartition("\n")
        self._partial.text = rest
        if end:
            self._pass_on(lines + end)
        return len(text)

    def flush(self) -> None:
        partial, self._partial.text = getattr(self._partial, "text", ""), ""
        if not self._below.closed:  # it may be closed before this one is collected
            self._pass_on(partial)

    def _pass_on(self, text: str) -> None:
        with self._lock:
            self._below.write(text)
            self._below.flush()
