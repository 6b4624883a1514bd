"""When a cron schedule is due; pure.

No worker checks at exactly the scheduled moment, and for hours none may be running at all. So a
schedule keeps the first time that is still owed, and `due` says which of the times since then get a
job.

The parser is imported with the first schedule: most programs have none.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from perdure.base.errors import DefinitionError

if TYPE_CHECKING:
    from cronsim import CronSim

CatchUp: TypeAlias = Literal["skip", "one", "all"]

MOST_CAUGHT_UP = 1000  # missed times that are caught up on at once; older ones are dropped
ON_TIME = 60.0  # seconds of lateness that do not count as a missed time

_MINUTE = timedelta(minutes=1)


class Due(Struct, frozen=True):
    """The times to submit a job for now, oldest first, and when to look again (None: never)."""

    times: tuple[float, ...]
    next_at: float | None


def check_cron(cron: str, timezone: str = "UTC") -> str:
    """Check a schedule and return it in words: "Every 15th minute …".

    Raises:
        DefinitionError: The expression or the time zone is invalid.
    """
    return _parsed(cron, timezone, 0.0).explain()


def next_time(cron: str, timezone: str, after: float) -> float | None:
    """Return the next time after `after` (UNIX seconds); None if there is none within 50 years.

    At fixed hours, a time that the clocks skip in spring moves behind the gap, and one that comes
    twice in autumn counts once. With `*` as the hour, or `*/2`, time simply goes on: an hour that
    comes twice counts twice, and one that is skipped does not count.

    Raises:
        DefinitionError: The expression or the time zone is invalid.
    """
    return next(_times(cron, timezone, after), None)


def due(cron: str, timezone: str, next_at: float, now: float, catch_up: CatchUp = "one") -> Due:
    """Return the times to submit a job for now, and when to look again.

    Args:
        cron: The expression.
        timezone: The time zone of its hours.
        next_at: The first time for which no job was submitted yet.
        now: The current time.
        catch_up: Which missed times get a job: none, the latest, or all.

    Raises:
        DefinitionError: The expression or the time zone is invalid.
    """
    if next_at > now:
        return Due((), next_at)
    passed = _passed(cron, timezone, next_at, now)
    return Due(_chosen(passed, now, catch_up), next_time(cron, timezone, now))


def key(schedule: str, time: float) -> str:
    """Return the idempotency key of the job for one time of a schedule."""
    return f"{schedule}@{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _passed(cron: str, timezone: str, next_at: float, now: float) -> list[float]:
    """Return the latest times that have passed, at most `MOST_CAUGHT_UP`."""
    # After years of a schedule of every minute, counting forwards from the first missed time would
    # take long. So count backwards to where the latest ones begin, then forwards from there.
    backwards = _stamps(cron, timezone, now, reverse=True)
    begin = min(islice(backwards, MOST_CAUGHT_UP), default=next_at)
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
    """Yield the times after a time, each later than the one before, whatever the clocks do."""
    for stamp in _stamps(cron, timezone, after):
        if stamp > after:
            yield (after := stamp)


def _stamps(cron: str, timezone: str, start: float, *, reverse: bool = False) -> Iterator[float]:
    """Yield the times from a start on, or back from it; some may be the same, or before it."""
    zone = ZoneInfo(timezone)
    for time in _parsed(cron, timezone, start, reverse=reverse):
        yield (_in_zone(time, zone) if time.tzinfo is None else time).timestamp()


def _in_zone(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when the clocks show a time first; behind the gap, if they skip it."""
    while (time := wall.replace(tzinfo=zone)).astimezone(UTC).astimezone(zone) != time:
        wall += _MINUTE
    return time


def _parsed(cron: str, timezone: str, start: float, *, reverse: bool = False) -> "CronSim":
    """Return the times of an expression from a start on, or back from it.

    At fixed hours they are times of a clock on the wall, without a zone.
    """
    import cronsim  # noqa: PLC0415 - see the top of this file

    try:
        begin = datetime.fromtimestamp(start, ZoneInfo(timezone))
        if not any(hour.startswith("*") for hour in cron.split()[-4:-3]):
            begin = begin.replace(tzinfo=None)
        return cronsim.CronSim(cron, begin, reverse=reverse)
    except cronsim.CronSimError as error:
        raise DefinitionError(f"{cron!r} is not a cron expression: {error}") from None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise DefinitionError(f"unknown time zone {timezone!r}") from None
