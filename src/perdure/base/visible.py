"""Make untrusted text safe to display: the one function that every output uses.

A text from a job or a person may move the cursor of a terminal, reverse the direction of what
follows, hide a word between letters, or begin a line that looks like ours. So every invisible
character is spelled out, as `⟨U+202E⟩`, before it reaches a terminal, a log, a message or a page.
What an output interprets beyond that (HTML, Slack's `<!channel>`) it escapes itself, afterwards.

The loggers of the package get a filter that does this too: a log record may carry the text of any
exception. It also removes secrets, and indents every line but the first, since a line that starts
at the margin would look like a record of its own.
"""

import logging
import re
import traceback
import unicodedata
from typing import Final

from perdure.base.secret import without_secrets

LONGEST_SHOWN: Final = 500  # characters, by default

_MOST_MARKS: Final = 4  # on one letter: more of them would paint over neighbouring lines
_MOST_SPACES: Final = 8  # in a row: more could push text to where a new line seems to begin

# Cc: control, Cf: format (including text direction), Co, Cn, Cs; Zl, Zp: line breaks.
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# Letters and marks that show nothing: fillers, joiners, variation selectors.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SPACES: Final = re.compile(f" {{{_MOST_SPACES},}}")


def visible(text: str, most: int | None = LONGEST_SHOWN, *, lines: bool = False) -> str:
    """Return a text on one line, with invisible characters spelled out.

    Args:
        text: Any text.
        most: Cut the text after this many characters, and say so; None shows all of it.
        lines: Keep line breaks and indentation, as in a traceback.
    """
    kept = text if most is None else text[:most]
    shown = kept if kept.isascii() and kept.isprintable() else _spelled(kept, lines=lines)
    if not lines:
        shown = _SPACES.sub(lambda found: f" ⟨{len(found.group())} spaces⟩ ", shown)
    left = len(text) - len(kept)
    return f"{shown} … ({left} more characters)" if left else shown


def visible_json(text: str) -> str:
    """Return JSON of the same meaning, with invisible characters escaped."""
    if text.isascii():
        return text  # JSON itself has no raw control characters
    return text.translate(_JSON)


class _Spelling(dict[int, str | int]):
    """How each character is shown: a table for `str.translate` that fills itself."""

    def __init__(self, *, json: bool = False) -> None:
        super().__init__()
        self.marks: set[str] = set()
        self._json = json

    def __missing__(self, code: int) -> str | int:
        letter = chr(code)
        category = unicodedata.category(letter)
        if category[0] == "M":
            self.marks.add(letter)
        if category in _HIDDEN or _BLANK.match(letter):
            shown: str | int = _in_json(letter) if self._json else _code(letter)
        else:
            shown = " " if category == "Zs" and not self._json else code
        self[code] = shown
        return shown


def _code(letter: str) -> str:
    return f"⟨U+{ord(letter):04X}⟩"


def _spelled(text: str, *, lines: bool) -> str:
    shown = text.translate(_LINES if lines else _ONE_LINE)
    marks = _ONE_LINE.marks | _LINES.marks
    return shown if marks.isdisjoint(shown) else _with_few_marks(shown, marks)


def _with_few_marks(text: str, marks: set[str]) -> str:
    found: list[str] = []
    count = 0
    for letter in text:
        count = count + 1 if letter in marks else 0
        found.append(_code(letter) if count > _MOST_MARKS else letter)
    return "".join(found)


def _in_json(letter: str) -> str:
    data = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


_ONE_LINE: Final = _Spelling()
_LINES: Final = _Spelling()
_LINES.update({ord("\n"): "\n", ord("\t"): "\t"})
_JSON: Final = _Spelling(json=True)
_JSON[ord("\n")] = "\n"  # between the lines of indented JSON


# All loggers of the package; a test checks that there are no others.
NAMES: Final = (
    "perdure.cli",
    "perdure.entries",
    "perdure.host",
    "perdure.integrations",
    "perdure.jobs",
    "perdure.notify",
    "perdure.otp",
    "perdure.process",
    "perdure.store",
    "perdure.supervisor",
    "perdure.task",
    "perdure.telemetry",
    "perdure.web",
    "perdure.worker",
)

_AT_MARGIN: Final = re.compile(r"\n(?=\S)")


def readable(text: str) -> str:
    """Return a text of several lines as it may appear in a log."""
    return _AT_MARGIN.sub("\n  ", visible(without_secrets(text), None, lines=True))


class Readable(logging.Filter):
    """Makes log records readable; a readable one keeps its template and arguments."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for every record, changing it if necessary."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - the handlers report it
            return True
        shown = readable(text)
        if shown != text:
            record.msg, record.args = shown, None
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            text = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = readable(text.rstrip())
        return True


for _name in NAMES:
    logging.getLogger(_name).addFilter(Readable())
