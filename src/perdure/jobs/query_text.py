r"""The text that says which jobs are meant: in the dashboard, in the API and on the command line.

    state:attention name:migrate* label.team:data created:<2h -queue:mail june

A text is a list of terms, and a job must match them all. A term is a field and its value, or a bare
word, which is looked for in the id, name, key and user of jobs. `-` before a term excludes. What
contains spaces or signs is quoted: `key:"june 1"`; inside, a backslash stands before `"` and `\`.

| term | jobs |
|---|---|
| `state:failed`, `state:failed,paused`, `state:active` | in one of these states or groups |
| `state:stuck` | that a worker has, and that make no progress |
| `name:load`, `name:load*`, `key:june`, `key:june*` | of this name or key, or whose begins so |
| `queue:mail`, `tenant:acme`, `user:kim` | of this queue, tenant or user |
| `label.team:data`, `label.team=data` | with this label |
| `parent:ID`, `parent:none` | that are children of a job, or of none |
| `waits:approval` | that wait for this: approval, message, timer, child, children or retry |
| `created:<2h`, `created:>7d`, `ended:<1d` | of less, or more, than this age |
| `created:2026-11-17`, `created:>=2026-11-17T12:00` | of a day, since a time, … (UTC) |

`parse` returns the `JobQuery`, `spell` a text for one, and `complete` suggests how to go on.
Excluded may be `state`, `name`, `queue`, `user` and `label`. Everything here is pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from perdure.base.duration import job_seconds
from perdure.base.errors import QueryError
from perdure.jobs.model import JobQuery, TimeRange
from perdure.jobs.state import ENDED, LIVE, JobState

LONGEST: Final = 2000  # characters of a query
MOST_TERMS: Final = 50

GROUPS: Final[dict[str, frozenset[JobState]]] = {
    "attention": frozenset({JobState.NEEDS_ATTENTION}),
    "active": LIVE,
    "open": frozenset(JobState) - ENDED,
    "failing": frozenset({JobState.FAILED, JobState.NEEDS_ATTENTION}),
    "undone": frozenset({JobState.COMPENSATING, JobState.COMPENSATED}),
    "done": ENDED,
}
_HINTS: Final = {
    "attention": "a person must act",
    "active": "pending, running, waiting or being undone",
    "open": "not ended",
    "failing": "failed, or a person must act",
    "undone": "undone, or being undone",
    "done": "ended, in whichever way",
    "stuck": "a worker has it, and it makes no progress",
}
_STUCK: Final = "stuck"  # no state or group of states: jobs of some states are, or are not
_FIELDS: Final = {
    "state": "state or group of states",
    "name": "name of the job; name:load* begins so",
    "label.": "a label, as label.team:data",
    "queue": "queue",
    "key": "idempotency key",
    "tenant": "tenant",
    "user": "who submitted it",
    "parent": "children of a job; parent:none has no parent",
    "waits": "what it waits for",
    "created": "age or time of submission, as created:<2h",
    "ended": "age or time of its end, as ended:<1d",
}
_WAITS: Final = ("approval", "message", "timer", "child", "children", "retry")
_AGES: Final = {"<15m": "the last 15 minutes", "<1h": "the last hour", "<1d": "the last day"}
_ZONE: Final = re.compile(r"(?:Z|[+-][0-9:.]+)$")
_SIGNS: Final = frozenset(' \t\n\r\v\f":,=*\\')


# Terms: from text to fields and values, with their places.


class _Part(Struct, frozen=True):
    """Characters, each with its place and whether it was quoted."""

    letters: tuple[tuple[str, int, bool], ...]
    start: int

    @property
    def text(self) -> str:
        return "".join(letter for letter, _, _ in self.letters)

    def cut(self, signs: str) -> "tuple[_Part, _Part] | None":
        """Return what is before and after the first of these signs that is not quoted."""
        for index, (letter, at, quoted) in enumerate(self.letters):
            if letter in signs and not quoted:
                return _Part(self.letters[:index], self.start), self.after(index + 1, at + 1)
        return None

    def after(self, index: int, at: int) -> "_Part":
        rest = self.letters[index:]
        return _Part(rest, rest[0][1] if rest else at)

    def begins(self, sign: str) -> bool:
        return bool(self.letters) and self.letters[0][0] == sign and not self.letters[0][2]

    def ends(self, sign: str) -> bool:
        return bool(self.letters) and self.letters[-1][0] == sign and not self.letters[-1][2]


def _terms(text: str) -> Iterator[_Part]:
    """Yield the terms of a text.

    Raises:
        QueryError: A quotation does not end.
    """
    letters: list[tuple[str, int, bool]] = []
    start, opened, at = 0, -1, 0
    while at < len(text):
        letter = text[at]
        if opened >= 0 and letter == "\\" and at + 1 < len(text):
            at += 1
            letters.append((text[at], at, True))
        elif letter == '"':
            opened = at if opened < 0 else -1
            letters.append(("", at, True))  # so that "" is a value too
        elif letter.isspace() and opened < 0:
            if letters:
                yield _Part(tuple(letters), start)
            letters, start = [], at + 1
        else:
            letters.append((letter, at, opened >= 0))
        at += 1
    if opened >= 0:
        raise QueryError(text, opened, "this quotation mark is not closed")
    if letters:
        yield _Part(tuple(letters), start)


# Reading


def parse(text: str) -> JobQuery:
    """Return which jobs a text means; an empty one means all.

    Raises:
        QueryError: It is not a query; the error says where and why.
    """
    if len(text) > LONGEST:
        raise QueryError(text[:40] + "…", LONGEST, f"at most {LONGEST:,} characters are read")
    reader = _Reader(text)
    for count, term in enumerate(_terms(text)):
        if count >= MOST_TERMS:
            raise QueryError(text, term.start, f"at most {MOST_TERMS} terms are read")
        reader.read(term)
    return reader.query()


class _Reader:
    """Gathers the terms of one query."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._states: frozenset[JobState] | None = None
        self._not_states: frozenset[JobState] = frozenset()
        self._values: dict[str, Any] = {}

    def query(self) -> JobQuery:
        found: tuple[JobState, ...] | None = None
        if self._states is not None or self._not_states:
            wanted = self._states if self._states is not None else frozenset(JobState)
            found = tuple(each for each in JobState if each in wanted - self._not_states)
        return JobQuery(states=found, **self._values)

    def read(self, term: _Part) -> None:
        negated = term.begins("-") and len(term.letters) > 1
        if negated:
            term = term.after(1, term.start + 1)
        pair = term.cut(":=" if term.text.startswith("label.") else ":")
        if pair is None:
            self._read_word(term, negated=negated)
            return
        field, value = pair
        if not value.letters:
            raise self._wrong(value, f"`{field.text}:` needs a value")
        if field.text.startswith("label."):
            self._read_label(field, value, negated=negated)
        elif negated and field.text in _FIELDS:
            self._exclude(field, value)
        elif reader := _READERS.get(field.text):
            reader(self, field, value)
        else:
            raise self._unknown(field, "field", [name for name in _FIELDS if name != "label."])

    def _read_word(self, term: _Part, *, negated: bool) -> None:
        if negated:
            why = "a word cannot be excluded; exclude by a field, as -name:load"
            raise self._wrong(term, why)
        if not term.text:
            raise self._wrong(term, "a word must not be empty")
        self._values["words"] = (*self._values.get("words", ()), term.text)

    def _read_label(self, field: _Part, value: _Part, *, negated: bool) -> None:
        name, kind = field.text.removeprefix("label."), "not_labels" if negated else "labels"
        if not name:
            raise self._wrong(field, "the label needs a name, as label.team:data")
        labels: dict[str, str] = self._values.setdefault(kind, {})
        if name in labels:
            raise self._wrong(field, f"label {name} is given twice")
        labels[name] = value.text

    def _exclude(self, field: _Part, value: _Part) -> None:
        if field.text == "state":
            self._not_states |= self._read_states(value)
        elif field.text in ("name", "queue", "user") and not value.ends("*"):
            kind = f"not_{field.text}s"
            self._values[kind] = (*self._values.get(kind, ()), value.text)
        else:
            why = "only whole values of state, name, queue, user and label can be excluded"
            raise self._wrong(field, why)

    def read_state(self, _: _Part, value: _Part) -> None:
        if value.text.lower() == _STUCK:
            self._values["stuck"] = True
            return
        self._states = (self._states or frozenset()) | self._read_states(value)

    def _read_states(self, value: _Part) -> frozenset[JobState]:
        found: frozenset[JobState] = frozenset()
        rest: _Part | None = value
        while rest is not None:
            one, rest = rest.cut(",") or (rest, None)
            found |= self._read_one_state(one)
        return found

    def _read_one_state(self, value: _Part) -> frozenset[JobState]:
        word = value.text.lower()
        if word in GROUPS:
            return GROUPS[word]
        if word.upper() in JobState.__members__:
            return frozenset({JobState(word.upper())})
        if word == _STUCK:
            raise self._wrong(value, "`stuck` stands alone, as state:stuck")
        raise self._unknown(value, "state", _state_words())

    def read_text(self, field: _Part, value: _Part) -> None:
        self._once(field, field.text, value.text)

    def read_prefix(self, field: _Part, value: _Part) -> None:
        if value.ends("*"):
            prefix = _Part(value.letters[:-1], value.start).text
            if not prefix:
                raise self._wrong(value, f"`{field.text}:*` matches everything: leave it out")
            self._once(field, f"{field.text}_prefix", prefix)
        else:
            self._once(field, field.text, value.text)

    def read_parent(self, field: _Part, value: _Part) -> None:
        if value.text == "none" and not any(quoted for _, _, quoted in value.letters):
            self._once(field, "roots", value=True)
        else:
            self._once(field, "parent", value.text)

    def read_waits(self, field: _Part, value: _Part) -> None:
        if value.text not in _WAITS:
            raise self._unknown(value, "kind of wait", _WAITS)
        self._once(field, "waits", value.text)

    def read_time(self, field: _Part, value: _Part) -> None:
        try:
            bounds = _bounds(value.text)
        except (ValueError, OverflowError):
            why = "give an age, as <2h or >7d, or a time, as >=2026-11-17 or <2026-11-17T12:00"
            raise self._wrong(value, why) from None
        known: TimeRange = self._values.get(field.text, TimeRange())
        for name in bounds:
            if getattr(known, name) is not None:
                raise self._wrong(field, f"this bound of `{field.text}` is given twice")
        self._values[field.text] = replace(known, **bounds)

    def _once(self, field: _Part, name: str, value: object) -> None:
        if name in self._values:
            raise self._wrong(field, f"`{field.text}` is given twice, and a job has only one")
        self._values[name] = value

    def _wrong(self, part: _Part, why: str) -> QueryError:
        return QueryError(self._text, part.start, why)

    def _unknown(self, part: _Part, what: str, known: Sequence[str]) -> QueryError:
        near = get_close_matches(part.text.lower(), known, 1)
        instead = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
        return self._wrong(part, f"there is no {what} {part.text!r}{instead}")


_READERS: Final[dict[str, Callable[[_Reader, _Part, _Part], None]]] = {
    "state": _Reader.read_state,
    "name": _Reader.read_prefix,
    "key": _Reader.read_prefix,
    "queue": _Reader.read_text,
    "tenant": _Reader.read_text,
    "user": _Reader.read_text,
    "parent": _Reader.read_parent,
    "waits": _Reader.read_waits,
    "created": _Reader.read_time,
    "ended": _Reader.read_time,
}


# Times


def _bounds(text: str) -> dict[str, float]:
    """Return which bounds of a `TimeRange` a text gives.

    Raises:
        ValueError: It is neither an age nor a time.
    """
    sign = next((each for each in ("<=", ">=", "<", ">") if text.startswith(each)), "")
    rest = text.removeprefix(sign)
    if rest[4:5] != "-":  # not a year
        age = job_seconds(rest)
        if age is None or sign in ("<=", ">="):
            raise ValueError(text)
        return {"older" if sign == ">" else "younger": age}
    time = datetime.fromisoformat(rest)
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    end = time + _precision(rest)
    match sign:
        case ">=":
            return {"after": time.timestamp()}
        case ">":
            return {"after": end.timestamp()}
        case "<":
            return {"before": time.timestamp()}
        case "<=":
            return {"before": end.timestamp()}
        case _:
            return {"after": time.timestamp(), "before": end.timestamp()}


def _precision(text: str) -> timedelta:
    """Return how long what a time names lasts: a day, a minute, a second or less."""
    clock = _ZONE.sub("", text[len("2026-11-17T") :])
    if not clock:
        return timedelta(days=1)
    if "." in clock:
        return timedelta(microseconds=1)
    return timedelta(minutes=1) if clock.count(":") < 2 else timedelta(seconds=1)  # noqa: PLR2004  h:m:s


# Writing


def spell(query: JobQuery) -> str:
    """Return the text that `parse` reads as this query, without its page and limit."""
    return " ".join(_spelled(query))


def _spelled(query: JobQuery) -> Iterator[str]:
    yield from _spell_states(query.states)
    if query.stuck:
        yield f"state:{_STUCK}"
    for name in ("name", "queue", "key", "tenant", "user", "waits"):
        if (value := getattr(query, name)) is not None:
            yield f"{name}:{_quoted(value)}"
        if (prefix := getattr(query, f"{name}_prefix", None)) is not None:
            yield f"{name}:{_quoted(prefix)}*"
    if query.parent is not None:
        yield 'parent:"none"' if query.parent == "none" else f"parent:{_quoted(query.parent)}"
    if query.roots:
        yield "parent:none"
    yield from (f"label.{_quoted(name)}:{_quoted(it)}" for name, it in query.labels.items())
    yield from (f"-label.{_quoted(name)}:{_quoted(it)}" for name, it in query.not_labels.items())
    for name in ("name", "queue", "user"):
        yield from (f"-{name}:{_quoted(value)}" for value in getattr(query, f"not_{name}s"))
    yield from _spell_range("created", query.created)
    yield from _spell_range("ended", query.ended)
    yield from (_quoted(word, is_word=True) for word in query.words)


def _spell_states(states: tuple[JobState, ...] | None) -> Iterator[str]:
    if states is None:
        return
    wanted = frozenset(states)
    for name, group in GROUPS.items():
        if group == wanted:
            yield f"state:{name}"
            return
    left_out = [each.lower() for each in JobState if each not in wanted]
    if len(left_out) < len(wanted) or not wanted:
        yield f"-state:{','.join(left_out)}" if left_out else "state:open,done"
    else:
        yield f"state:{','.join(each.lower() for each in JobState if each in wanted)}"


def _spell_range(field: str, bounds: TimeRange | None) -> Iterator[str]:
    if bounds is None:
        return
    signs = {"after": ">=", "before": "<", "younger": "<", "older": ">"}
    for name, value in asdict(bounds).items():
        if value is not None:
            spelled = _spell_time(value) if name in ("after", "before") else _spell_age(value)
            yield f"{field}:{signs[name]}{spelled}"


def _spell_time(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")


def _spell_age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds // size)}{unit}"
    return f"{seconds:f}".rstrip("0").rstrip(".") + "s"


def _quoted(text: str, *, is_word: bool = False) -> str:
    """Return a text as a value, in quotation marks if it could be read as something else."""
    plain = text and not any(letter in _SIGNS or letter.isspace() for letter in text)
    if plain and not (is_word and text.startswith("-")):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# Completion


class QueryWords(Struct, frozen=True, kw_only=True):
    """What occurs in the jobs that somebody may see, for suggestions."""

    names: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    labels: Mapping[str, tuple[str, ...]] = {}


class Suggestion(Struct, frozen=True, kw_only=True):
    """A way to go on: `text` replaces the query from `start` to `end`."""

    text: str
    kind: str  # "field" or "value"
    hint: str
    start: int
    end: int


def complete(text: str, at: int, known: QueryWords, most: int = 20) -> list[Suggestion]:
    """Return how the term that ends at a place may go on.

    Args:
        text: The query so far, which need not be right.
        at: Where the cursor is.
        known: What occurs in the jobs.
        most: How many suggestions, at most.
    """
    start = _start_of_term(text, at)
    written = text[start:at]
    sign = "-" if written.startswith("-") else ""
    written = written.removeprefix("-")
    field, colon, value = written.partition(":")
    if not colon and written.startswith("label."):
        field, colon, value = written.partition("=")
    found = _values(field, value, known) if colon else _fields(written, known, negated=bool(sign))
    prefix = f"{sign}{field}{colon}" if colon else sign
    kind = "value" if colon else "field"
    end = at + len(text[at:]) - len(text[at:].lstrip('*"')) if colon else at
    return [
        Suggestion(text=prefix + word, kind=kind, hint=hint, start=start, end=end)
        for word, hint in found
    ][:most]


def _start_of_term(text: str, at: int) -> int:
    start, quoted = 0, False
    for index, letter in enumerate(text[:at]):
        if letter == '"' and text[index - 1 : index] != "\\":
            quoted = not quoted
        elif letter.isspace() and not quoted:
            start = index + 1
    return start


_EXCLUDABLE: Final = ("state", "name", "queue", "user", "label.")


def _fields(written: str, known: QueryWords, *, negated: bool) -> Iterator[tuple[str, str]]:
    for name, hint in _FIELDS.items():
        if negated and name not in _EXCLUDABLE:
            continue
        if name == "label.":
            for label in sorted(known.labels):
                if (word := f"label.{_quoted(label)}:").startswith(written):
                    yield word, "label"
        elif name.startswith(written):
            yield f"{name}:", hint


def _values(field: str, value: str, known: QueryWords) -> Iterable[tuple[str, str]]:
    if field == "state":
        return _states_like(value)
    if field.startswith("label."):
        label = field.removeprefix("label.").strip('"')
        return _like(value, known.labels.get(label, ()))
    if field in ("created", "ended"):
        return ((age, hint) for age, hint in _AGES.items() if age.startswith(value))
    fixed = {"waits": _WAITS, "parent": ("none",)}
    return _like(value, fixed.get(field) or getattr(known, f"{field}s", ()))


def _state_words() -> list[str]:
    return [*GROUPS, _STUCK, *(each.lower() for each in JobState)]


def _states_like(value: str) -> Iterator[tuple[str, str]]:
    before, comma, last = value.rpartition(",")
    for name in _state_words():
        if name.startswith(last.lower()):
            yield f"{before}{comma}{name}", _HINTS.get(name, "state")


def _like(value: str, words: Iterable[str]) -> Iterator[tuple[str, str]]:
    written = value.strip('"').lower()
    for word in words:
        if word.lower().startswith(written):
            yield _quoted(word), ""
