"""Structured logs: each record says which job, step and attempt it was logged in.

    configure("json")                      # what `perdure worker --log-format json` does
    logging.getLogger("shop").info("charged", extra={"order": 7})

In a job or step, this is one line of JSON with `job`, `job_name`, `tenant`, `worker`, `step` and
`attempt` beside time, level, logger and message. Secrets are removed as far as they can be
recognised: values under telling names, passwords in URLs, tokens with the prefix of their issuer.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, TypeAlias, cast

from perdure.base.secret import REMOVED, is_secret_name, without_secrets
from perdure.base.visible import visible_json
from perdure.engine.working_on import working_on

LogFormat: TypeAlias = Literal["console", "json"]

_CONSOLE: Final = "%(asctime)s  %(levelname)s  %(message)s%(in_work)s"
_DEEPEST: Final = 6  # levels of what `extra` gives

# What every record has: everything else was given by `extra`.
_ORDINARY: Final = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}
)
_WORK: Final = ("job", "job_name", "tenant", "worker", "step", "attempt")
_OURS: Final = frozenset({*_WORK, "in_work"})


class WorkFilter(logging.Filter):
    """Adds to each record what its code works on; put it on a handler, not on a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields, and let the record pass."""
        work = working_on.get()
        values: tuple[object, ...] = (
            (None,) * len(_WORK)
            if work is None
            else (work.job, work.name, work.tenant, work.worker, work.step, work.attempt)
        )
        for name, value in zip(_WORK, values, strict=True):
            record.__dict__.setdefault(name, value or None)
        where = ""
        if work is not None and (work.step or not _names(record, work.job)):
            where = f"  (job {work.job}{_at(work.step, work.attempt)})"
        record.__dict__["in_work"] = where
        return True


def _names(record: logging.LogRecord, job: str) -> bool:
    """Whether the text of a record names the job itself."""
    return any(isinstance(each, str) and each == job for each in record.args or ())


def _at(step: str, attempt: int) -> str:
    return f", {step}, attempt {attempt}" if step else ""


class JsonFormatter(logging.Formatter):
    """Makes one line of JSON of a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        fields = vars(record)
        told |= {name: fields[name] for name in _WORK if fields.get(name) is not None}
        given = {name: fields[name] for name in fields.keys() - _ORDINARY - _OURS}
        told |= {name: _safe(name, value) for name, value in sorted(given.items())}
        if trace := self._trace(record):
            told["error"] = without_secrets(trace)
        return visible_json(json.dumps(told, ensure_ascii=False, default=_text))

    def _trace(self, record: logging.LogRecord) -> str:
        text = record.exc_text or ""
        if record.exc_info and not text:
            text = self.formatException(record.exc_info)
        stack = self.formatStack(record.stack_info) if record.stack_info else ""
        return "\n".join(part for part in (text, stack) if part)


def _safe(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value of `extra` without secrets."""
    if is_secret_name(name):
        return REMOVED
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping) and depth < _DEEPEST:
        pairs = cast("Mapping[object, Any]", value).items()
        return {str(key): _safe(str(key), each, depth + 1) for key, each in pairs}
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [_safe("", each, depth + 1) for each in cast("list[Any]", value)]
    return value if isinstance(value, int | float | bool | None) else _text(cast("object", value))


def _text(value: object) -> str:
    try:
        return without_secrets(str(value))
    except Exception:  # noqa: BLE001 - a value that cannot be shown must not lose the record
        return f"<{type(value).__name__}>"


def configure(
    style: LogFormat = "console", level: int | str = logging.INFO, stream: TextIO | None = None
) -> logging.Handler:
    """Let all loggers write to a stream, and return the handler.

    Args:
        style: "console" for people, "json" for programs: one object on each line.
        level: The least important level that is written.
        stream: Where to; by default standard error.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(WorkFilter())
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter(_CONSOLE, datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    return handler
