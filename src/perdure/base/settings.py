"""The bounds of a runtime, each with a name and a reason; checked once, when they are made."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from perdure.base.duration import Duration, named_seconds

PREFIX = "PERDURE_"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class Overflow(StrEnum):
    """What happens to a message for a full mailbox."""

    REJECT = "reject"  # the sender is told
    DROP_NEWEST = "drop_newest"  # the message is thrown away
    DROP_OLDEST = "drop_oldest"  # the message that waited longest makes room
    EXIT = "exit"  # the receiver is ended: it cannot keep up


@dataclass(frozen=True, slots=True, init=False)
class Settings:
    """The bounds of a runtime; durations are kept as seconds."""

    # How long what is left at the end of a runtime may clean up before it is killed.
    stop_timeout: float
    # A kill is repeated so often, because a coroutine may swallow a cancellation.
    kill_every: float
    # A killed process that is still there after this counts as dead: nobody waits for ever.
    abandon_after: float
    # Steps in one turn of the scheduler, so that a busy process cannot starve the loop.
    turn_steps: int
    # Time for one turn of the scheduler, since a step may be slow.
    turn_time: float
    # How long a loop that has said something to another OS process looks for the answer before it
    # sleeps; 0 = it sleeps at once. What was looked for in vain is looked for ever less often.
    busy_wait: float
    # Messages that may wait in a mailbox; None = as many as memory holds.
    mailbox_limit: int | None
    # What a full mailbox does with one more message.
    overflow: Overflow
    # Whether crashes are logged: all but that of the root process, which `run` raises.
    report_crashes: bool
    # A task that runs longer is warned of: long-lived loops belong into a server. None = never.
    long_task: float | None

    def __init__(  # noqa: PLR0913  a record has a parameter for each field
        self,
        *,
        stop_timeout: Duration = "5s",
        kill_every: Duration = "20ms",
        abandon_after: Duration = "5s",
        turn_steps: int = 1024,
        turn_time: Duration = "5ms",
        busy_wait: Duration = "100us",
        mailbox_limit: int | None = None,
        overflow: Overflow | str = Overflow.REJECT,
        report_crashes: bool = True,
        long_task: Duration = "5m",
    ) -> None:
        """Check every value.

        Raises:
            ValueError: A value is out of its range; the text names the setting.
            TypeError: A value has the wrong type; the text names the setting.
        """
        limit = None if mailbox_limit is None else _count("mailbox_limit", mailbox_limit)
        object.__setattr__(self, "stop_timeout", named_seconds("stop_timeout", stop_timeout))
        object.__setattr__(self, "kill_every", _some_time("kill_every", kill_every))
        object.__setattr__(self, "abandon_after", named_seconds("abandon_after", abandon_after))
        object.__setattr__(self, "turn_steps", _count("turn_steps", turn_steps))
        object.__setattr__(self, "turn_time", _some_time("turn_time", turn_time))
        object.__setattr__(self, "busy_wait", named_seconds("busy_wait", busy_wait))
        object.__setattr__(self, "mailbox_limit", limit)
        object.__setattr__(self, "overflow", _overflow("overflow", overflow))
        object.__setattr__(self, "report_crashes", _flag("report_crashes", report_crashes))
        limit_of_task = None if long_task is None else _some_time("long_task", long_task)
        object.__setattr__(self, "long_task", limit_of_task)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read `PERDURE_STOP_TIMEOUT` and its like; what is not set keeps its default.

        Raises:
            ValueError: Names every variable that is unknown or has a bad value.
        """
        values: dict[str, Any] = {}
        mistakes: list[str] = []
        for variable in sorted(name for name in environ if name.startswith(PREFIX)):
            try:
                setting, value = _read(variable, environ[variable])
                cls(**{setting: value})
            except (ValueError, TypeError) as error:
                mistakes.append(f"{variable}: {error}")
            else:
                values[setting] = value
        if mistakes:
            raise ValueError("bad settings in the environment:\n  " + "\n  ".join(mistakes))
        return cls(**values)


def _read(variable: str, text: str) -> tuple[str, Any]:
    """Turn a variable into the name and the value of a setting."""
    known = {PREFIX + field.name.upper(): field.name for field in fields(Settings)}
    if variable not in known:
        raise ValueError(f"unknown; the settings are {', '.join(sorted(known))}")
    setting = known[variable]
    match setting:
        case "turn_steps":
            return setting, _integer(text)
        case "mailbox_limit":
            return setting, None if text.lower() == "none" else _integer(text)
        case "long_task":
            return setting, None if text.lower() == "none" else text
        case "report_crashes":
            return setting, _boolean(text)
        case _:
            return setting, text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither of {' '.join(_TRUE)} nor of {' '.join(_FALSE)}")


def _some_time(name: str, value: Duration) -> float:
    time = named_seconds(name, value)
    if time == 0:
        raise ValueError(f"{name} must be longer than 0")
    return time


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more: {value}")
    return value


def _overflow(name: str, value: str) -> Overflow:
    try:
        return Overflow(value)
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(Overflow)}: {value!r}") from None


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value
