"""The longest names, keys and reasons that are accepted, the same for every store; pure.

PostgreSQL indexes no text of more than 2,704 bytes, while SQLite indexes any. The limits are
checked before either store sees the text, so that a program which works with one works with both.
"""

from collections.abc import Iterator, Mapping
from typing import Final, cast

from perdure.base.errors import ArgumentError, DefinitionError

LONGEST_TENANT: Final = 200  # characters, as all of these
LONGEST_USER: Final = 200
LONGEST_KEY: Final = 500
LONGEST_QUEUE: Final = 100
LONGEST_TOPIC: Final = 200
LONGEST_SCHEDULE: Final = 200
LONGEST_VERSION: Final = 100
LONGEST_TAG: Final = 100
LONGEST_REASON: Final = 4000
LONGEST_LABEL: Final = 100
LONGEST_LABEL_VALUE: Final = 200
MOST_LABELS: Final = 20  # of one job
LONGEST_TITLE: Final = 4000
LONGEST_VIEW: Final = 200
LONGEST_QUERY: Final = 2000

_LIMITS: Final = {
    "tenant": LONGEST_TENANT,
    "user": LONGEST_USER,
    "by": LONGEST_USER,
    "to": LONGEST_USER,
    "key": LONGEST_KEY,
    "id": LONGEST_KEY,
    "queue": LONGEST_QUEUE,
    "topic": LONGEST_TOPIC,
    "view": LONGEST_VIEW,
    "query": LONGEST_QUERY,
    "schedule": LONGEST_SCHEDULE,
    "version": LONGEST_VERSION,
    "tag": LONGEST_TAG,
    "reason": LONGEST_REASON,
    "label": LONGEST_LABEL,
    "label value": LONGEST_LABEL_VALUE,
    "title": LONGEST_TITLE,
}
_NEEDED: Final = frozenset(
    {"id", "tenant", "queue", "topic", "schedule", "version", "tag", "label"}
)
# What people read, type and compare: nothing in it may be invisible.
_NAMES: Final = frozenset(
    {"tenant", "queue", "topic", "schedule", "version", "tag", "label", "view"}
)


def check_given(**texts: object) -> None:
    """Check the texts of a submission or a command.

    Raises:
        ArgumentError: A text is too long, empty, or not storable; every reason is named.
    """
    found = [f"`{name}` {why}" for name, text in texts.items() if (why := _why_not(name, text))]
    if found:
        raise ArgumentError("this cannot be stored", found)


def check_labels(labels: object) -> dict[str, str]:
    """Return the labels of a submission or a query.

    Raises:
        ArgumentError: They are too many, too long, or not texts; every reason is named.
    """
    if not isinstance(labels, Mapping):
        kind = type(labels).__name__
        why = f'`labels` must map names to texts, as {{"team": "data"}}, not be a {kind}'
        raise ArgumentError("this cannot be stored", [why])
    given = cast("Mapping[object, object]", labels)
    found = list(_wrong_labels(given))
    if found:
        raise ArgumentError("this cannot be stored", found)
    return cast("dict[str, str]", dict(given))


def _wrong_labels(labels: Mapping[object, object]) -> Iterator[str]:
    if len(labels) > MOST_LABELS:
        yield f"a job has at most {MOST_LABELS} labels, not {len(labels):,}"
        return
    for name, value in labels.items():
        shown = repr(name)[:50]
        if not isinstance(name, str) or "=" in name:  # a command line gives them as name=value
            yield f"the name of label {shown} must be a text without ="
        elif why := _why_not("label", name):
            yield f"the name of label {shown} {why}"
        elif not isinstance(value, str):
            yield f"label {shown} must be a text, not {type(value).__name__}"
        elif why := _why_not("label value", value):
            yield f"label {shown} {why}"


def check_defined(what: str, **texts: object) -> None:
    """Check the texts of a definition.

    Raises:
        DefinitionError: A text is too long, empty, or not a string.
    """
    for name, text in texts.items():
        if why := _why_not(name, text):
            raise DefinitionError(f"`{name}` of {what} {why}")


def _why_not(name: str, text: object) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        return f"must be a string, not {type(text).__name__}"
    if len(text) > _LIMITS[name]:
        return f"has {len(text):,} characters; at most {_LIMITS[name]:,} are allowed"
    if not text and name in _NEEDED:
        return "must not be empty"
    if "\0" in text or (
        not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)
    ):
        return "has a NUL character or a lone surrogate, which databases refuse"
    return _why_no_name(name, text) if name in _NAMES else ""


def _why_no_name(name: str, text: str) -> str:
    if not text.isprintable():
        return f"has a character that is not printable: {ascii(text)[:50]}"
    if text != text.strip():
        return f"must not begin or end with a blank: {text[:50]!r}"
    if name == "queue" and " " in text:  # the command line and settings list them
        return f"must be without blanks: write {text.replace(' ', '-')[:50]!r}"
    return ""
