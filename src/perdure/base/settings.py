"""The settings of a runtime, each with its reason, checked when they are created."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from perdure.base.duration import Duration, named_seconds

PREFIX = "PERDURE_"
# Those of the command line; with _FILE at the end, they name a file that holds the value.
COMMAND_LINE = frozenset(
    PREFIX + name
    for name in (
        *("URL", "APP", "CONCURRENCY", "LOG_FORMAT", "LOG_LEVEL", "METRICS_HOST", "METRICS_PORT"),
        *("HOST", "PORT", "ENCRYPTION_KEYS", "ENCRYPTION_KEYS_FILE"),
    )
)

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class Overflow(StrEnum):
    """What happens to a message for a full mailbox."""

    REJECT = "reject"  # the sender gets an error
    DROP_NEWEST = "drop_newest"  # the message is dropped
    DROP_OLDEST = "drop_oldest"  # the oldest message is dropped to make room
    EXIT = "exit"  # the receiver is stopped, since it cannot keep up


@dataclass(frozen=True, slots=True, init=False)
class Settings:
    """The settings of a runtime; durations are in seconds."""

    # How long the processes that are left at the end of a runtime may clean up before a kill.
    stop_timeout: float
    # The interval at which a kill is repeated, because a coroutine may swallow a cancellation.
    kill_every: float
    # A killed process that still runs after this counts as dead, so that nobody waits for ever.
    abandon_after: float
    # The most steps in one turn of the scheduler, so that a busy process cannot starve the loop.
    turn_steps: int
    # The most time for one turn of the scheduler, since a step may be slow.
    turn_time: float
    # How long a loop that sent something to another OS process spins for the answer before it
    # sleeps; 0: it sleeps at once. After useless spins it spins less and less often.
    busy_wait: float
    # Messages that may wait in a mailbox; None means no limit.
    mailbox_limit: int | None
    # What happens to a message for a full mailbox.
    overflow: Overflow
    # Whether crashes are logged, except that of the root process, which `run` raises.
    report_crashes: bool
    # A task that runs longer causes a warning: a long-lived loop belongs in a server. None: never.
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
            ValueError: A value is out of range; the message names the setting.
            TypeError: A value has the wrong type; the message names the setting.
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
        """Return settings from environment variables such as `PERDURE_STOP_TIMEOUT`.

        Variables that are not set leave the default.

        Raises:
            ValueError: A variable is unknown or invalid; the message names all of them.
        """
        values: dict[str, Any] = {}
        mistakes: list[str] = []
        for variable in sorted(environ):
            if not variable.startswith(PREFIX) or variable.removesuffix("_FILE") in COMMAND_LINE:
                continue
            try:
                setting, value = _read(variable, environ[variable])
                cls(**{setting: value})
            except (ValueError, TypeError) as error:
                mistakes.append(f"{variable}: {error}")
            else:
                values[setting] = value
        if mistakes:
            raise ValueError("invalid settings in the environment:\n  " + "\n  ".join(mistakes))
        return cls(**values)


def _read(variable: str, text: str) -> tuple[str, Any]:
    """Return the name and the value of the setting that a variable sets."""
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
    raise ValueError(f"{text!r} is not a boolean: use one of {', '.join((*_TRUE, *_FALSE))}")


def _some_time(name: str, value: Duration) -> float:
    time = named_seconds(name, value)
    if time == 0:
        raise ValueError(f"{name} must be longer than 0")
    return time


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value}")
    return value


def _overflow(name: str, value: str) -> Overflow:
    try:
        return Overflow(value)
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(Overflow)}, not {value!r}") from None


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value
