"""What a supervisor reports: which child, under whom, since when, how often, and why.

The traceback of a crash is in the report of the process that crashed, which comes before.
"""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from perdure.base import telemetry
from perdure.base.duration import spell
from perdure.base.errors import StartError, describe, is_planned, safe_text
from perdure.otp.spec import BRUTAL_KILL
from perdure.otp.ward import Ward
from perdure.process.process import Process
from perdure.process.report import moment

if TYPE_CHECKING:
    from perdure.otp.oversight import Oversight

_log = logging.getLogger("perdure.supervisor")

RESTART_EVENT = ("perdure", "supervisor", "restart")
RETRY_EVENT = ("perdure", "supervisor", "restart_failed")
GIVE_UP_EVENT = ("perdure", "supervisor", "give_up")


def restarts(oversight: "Oversight", ward: Ward, reason: BaseException | None) -> None:
    """Tell that a child ended and is restarted."""
    _tell(RESTART_EVENT, oversight, ward, reason)
    level = logging.INFO if is_planned(reason) else logging.WARNING
    _write(level, oversight, "restarts a child", ward, reason)


def restart_failed(oversight: "Oversight", ward: Ward, error: StartError) -> None:
    """Tell that a child could not be started again, and that it will be tried once more."""
    _tell(RETRY_EVENT, oversight, ward, error.reason)
    what = "could not restart a child and tries again"
    _write(logging.WARNING, oversight, what, ward, error.reason)


def gave_up(oversight: "Oversight", ward: Ward, reason: BaseException | None) -> None:
    """Tell that there were too many restarts."""
    _tell(GIVE_UP_EVENT, oversight, ward, reason)
    what = "gives up: it stops all its children and ends"
    _write(logging.ERROR, oversight, what, ward, reason)


def stopped(oversight: "Oversight", ward: Ward, process: Process) -> None:
    """Tell that a child that was to stop did not stop as it should."""
    error = process.outcome.error if process.outcome is not None else None
    if not is_planned(error) and ward.spec.shutdown is not BRUTAL_KILL:
        what = "stopped a child, which ended otherwise than asked"
        _write(logging.WARNING, oversight, what, ward, error)


def place(oversight: "Oversight", ward: Ward) -> str:
    """Say under whom a child runs, and how often it was restarted: for its crash."""
    return (
        f"{_who(oversight)} as {safe_text(ward.spec.id)}, "
        f"{ward.spec.restart}, restarted {times(ward.restarts)} before"
    )


def unknown_message(oversight: "Oversight", message: object) -> None:
    """Tell that somebody sent to a supervisor what it has no use for."""
    with suppress(Exception):
        _log.warning("%s got a message and ignores it: %s", _who(oversight), safe_text(message))


def _write(
    level: int, oversight: "Oversight", what: str, ward: Ward, reason: BaseException | None
) -> None:
    if oversight.me.runtime.settings.report_crashes:
        with suppress(Exception):  # no broken log handler ends a supervisor
            _log.log(
                level,
                "%s %s\n%s",
                _who(oversight),
                what,
                _circumstances(oversight, ward, reason),
            )


def _tell(
    event: telemetry.Event, oversight: "Oversight", ward: Ward, reason: BaseException | None
) -> None:
    if telemetry.has_handlers(event):
        telemetry.execute(
            event,
            {"restarts": len(oversight.history)},
            {"supervisor": oversight.me.pid, "child": ward.spec.id, "reason": reason},
        )


def _who(oversight: "Oversight") -> str:
    return f"{oversight.label} {oversight.me.pid}"


def _circumstances(oversight: "Oversight", ward: Ward, reason: BaseException | None) -> str:
    limit = oversight.intensity
    return (
        f"  child: {safe_text(ward.spec.id)}, {ward.spec.restart} {ward.spec.type}\n"
        f"  why: {describe(reason)}\n"
        f"  since: {_since(oversight, ward)}, restarted {times(ward.restarts)} before\n"
        f"  restarts of all children: {len(oversight.history)} in the last "
        f"{spell(limit.max_seconds)}, {limit.max_restarts} are allowed"
    )


def _since(oversight: "Oversight", ward: Ward) -> str:
    """Spell when the child was last started, by the wall clock and as a span."""
    age = oversight.me.loop.time() - ward.since
    return f"{moment(oversight.me, age)} ({spell(round(age, 3))})"


def times(count: int) -> str:
    """Spell how often."""
    return "once" if count == 1 else f"{count} times"
