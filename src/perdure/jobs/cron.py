"""When a schedule is due; pure."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from perdure.base.errors import DefinitionError

CatchUp: TypeAlias = Literal["skip", "one", "all"]

MOST_CAUGHT_UP = 1000  # missed times that are made up for at once; older ones are let go
ON_TIME = 60.0  # seconds: nobody looks at the very moment, so this late is not missed


class Due(Struct, frozen=True):
    """The times to submit a job for now, oldest first, and when to look again (None: never)."""

    times: tuple[float, ...]
    next_at: float | None


def check_cron(cron: str, timezone: str = "UTC") -> str:
    """Check a schedule, and say it in words: "Every 15th minute …".

    Raises:
        DefinitionError: The expression or the time zone is none.
    """
    return CronSim(cron, _start(cron, timezone, 0.0)).explain()


def next_time(cron: str, timezone: str, after: float) -> float | None:
    """Give the first time after a time (UNIX seconds); None if there is none within 50 years.

    Times that a clock skips in spring are moved behind the gap; those that come twice in autumn
    are taken once if they are at fixed hours, as Debian's cron does.

    Raises:
        DefinitionError: The expression or the time zone is none.
    """
    return next(_times(cron, timezone, after), None)


def due(cron: str, timezone: str, next_at: float, now: float, catch_up: CatchUp = "one") -> Due:
    """Say for which times a job is to be submitted now.

    Args:
        cron: The expression.
        timezone: Where its hours are.
        next_at: The first time for which no job was submitted yet.
        now: The time.
        catch_up: Which times that nobody looked at are made up for: none, the latest, or all.

    Raises:
        DefinitionError: The expression or the time zone is none.
    """
    if next_at > now:
        return Due((), next_at)
    passed = _passed(cron, timezone, next_at, now)
    return Due(_chosen(passed, now, catch_up), next_time(cron, timezone, now))


def key(schedule: str, time: float) -> str:
    """Give the key of the job for one time of a schedule: submitted twice, it is one job."""
    return f"{schedule}@{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _passed(cron: str, timezone: str, next_at: float, now: float) -> list[float]:
    """List the latest times that have passed, at most so many as are ever made up for."""
    # After years of every minute, counting from the first one would take a while: so first
    # backwards to where the latest ones begin, then forwards.
    backwards = CronSim(cron, _start(cron, timezone, now), reverse=True)
    begin = min((time.timestamp() for time in islice(backwards, MOST_CAUGHT_UP)), default=next_at)
    late = [begin] if begin > next_at else [next_at]
    found = takewhile(lambda time: time <= now, _times(cron, timezone, late[0]))
    return [*late, *found][-MOST_CAUGHT_UP:]


def _chosen(passed: list[float], now: float, catch_up: CatchUp) -> tuple[float, ...]:
    if catch_up == "all":
        return tuple(passed)
    latest = passed[-1]
    if catch_up == "one" or now - latest <= ON_TIME:
        return (latest,)
    return ()


def _times(cron: str, timezone: str, after: float) -> Iterator[float]:
    """List the times after a time; always later ones, whatever clocks do."""
    found = CronSim(cron, _start(cron, timezone, after))
    stamps = (time.timestamp() for time in found)
    return (stamp for stamp in stamps if stamp > after)


def _start(cron: str, timezone: str, after: float) -> datetime:
    try:
        start = datetime.fromtimestamp(after, ZoneInfo(timezone))
        CronSim(cron, start)
    except CronSimError as error:
        raise DefinitionError(f"{cron!r} is no cron expression: {error}") from None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise DefinitionError(f"there is no time zone {timezone!r}") from None
    return start
