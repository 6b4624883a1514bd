"""What `perdure up` tells: one line for each thing that happens to an entry."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from perdure.base.clock import Clock
from perdure.base.duration import spell
from perdure.base.errors import describe
from perdure.base.telemetry import Event, Values
from perdure.base.visible import visible
from perdure.cli.output import as_json, cell

_STYLES = {
    "running": "green",
    "restarting": "yellow",
    "failed": "bold red",
    "exited": "cyan",
    "stopped": "dim",
}
_NOT_TOLD = ("starting", "stopping")  # what follows says enough to people


class News:
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
