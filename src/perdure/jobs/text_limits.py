"""How long names, keys and the words of people may be: the same on every store; pure.

PostgreSQL indexes no text of more than 2,704 bytes, SQLite any: so the limit stands before both.
"""

from typing import Final

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

_MOST: Final = {
    "tenant": LONGEST_TENANT,
    "user": LONGEST_USER,
    "by": LONGEST_USER,
    "to": LONGEST_USER,
    "key": LONGEST_KEY,
    "queue": LONGEST_QUEUE,
    "topic": LONGEST_TOPIC,
    "schedule": LONGEST_SCHEDULE,
    "version": LONGEST_VERSION,
    "tag": LONGEST_TAG,
    "reason": LONGEST_REASON,
}
_NEEDED: Final = frozenset({"tenant", "queue", "topic", "schedule", "version", "tag"})


def check_given(**texts: object) -> None:
    """Refuse texts of a submission or a command that are too long, or that no store keeps.

    Raises:
        ArgumentError: Every reason is named.
    """
    found = [f"`{name}` {why}" for name, text in texts.items() if (why := _why_not(name, text))]
    if found:
        raise ArgumentError("this cannot be kept", found)


def check_defined(what: str, **texts: object) -> None:
    """Refuse texts of a definition, likewise.

    Raises:
        DefinitionError: One of them is too long, empty, or no text.
    """
    for name, text in texts.items():
        if why := _why_not(name, text):
            raise DefinitionError(f"`{name}` of {what} {why}")


def _why_not(name: str, text: object) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        return f"must be a text, not {type(text).__name__}"
    if len(text) > _MOST[name]:
        return f"has {len(text):,} characters, and {_MOST[name]:,} are the most"
    if not text and name in _NEEDED:
        return "must not be empty"
    if "\0" in text or (
        not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)
    ):
        return "has a NUL character or half of a surrogate pair, which databases refuse"
    return ""
