"""Read YAML into plain values, with the line of each; safely, and with messages for people.

Nothing is constructed, everything is bounded, and lines are kept. PyYAML is imported when the first
file is read, so loading entries from mappings does not pay for it.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.base.errors import Mistake

if TYPE_CHECKING:
    import yaml

Key = str | int
Steps = tuple[Key, ...]


class Document(NamedTuple):
    """The content of one file, or of a mapping.

    Attributes:
        name: Names it in messages.
        folder: The folder that `file://` paths are relative to.
        value: Its content.
        lines: The line of each value, by the keys and indices that lead to it.
        mistakes: Those found while it was read.
    """

    name: str
    folder: Path
    value: Any
    lines: Mapping[Steps, int]
    mistakes: Sequence[Mistake] = ()


class Location(NamedTuple):
    """Where a value is in a document, and in which entry, if that is known."""

    document: Document
    steps: Steps = ()
    entry: str = ""

    def inside(self, key: Key) -> "Location":
        """Return the location of a value in this one."""
        return self._replace(steps=(*self.steps, key))

    def first_of(self, *keys: Key) -> "Location":
        """Return the location of the first of these keys that the file has."""
        places = [self.inside(key) for key in keys]
        return next((each for each in places if each.steps in self.document.lines), places[0])

    @property
    def line(self) -> int:
        """The line of the value, or of the nearest one around it that has a line."""
        lines = self.document.lines
        for length in range(len(self.steps), -1, -1):
            if line := lines.get(self.steps[:length]):
                return line
        return 0

    def mistake(self, text: str) -> Mistake:
        """Return a mistake with this location."""
        return Mistake(self.document.name, self.line, self.entry, text)

    def field(self, depth: int) -> str:
        """Return the path to the value from a depth on, as text: `lifecycle.restart.jitter`."""
        return ".".join(map(str, self.steps[depth:]))


# What a syntax error means, for people who do not know YAML's grammar


class _Explanation(NamedTuple):
    """What we say when the parser's message matches the pattern."""

    pattern: str
    text: str  # with the groups of the pattern, and the line where it began
    where_it_began: bool = False  # that line is reported: the parser notices the error only later


_ALL = (
    _Explanation(r"found character '\\t'", "a tab: indent with spaces"),
    _Explanation(r"found character '(.)'", "text cannot begin with {}: put it into quotes"),
    _Explanation(
        "expected <block end>, but found '<scalar>'",
        "text after a closed quote or bracket: remove it, or put the whole text into quotes",
    ),
    _Explanation(
        "expected (?:chomping|a comment or)",
        "text cannot begin with | or >: put it into quotes",
    ),
    _Explanation(
        "expected alphabetic or numeric character",
        "text cannot begin with * or &: put it into quotes",
    ),
    _Explanation(
        "expected (?:<block end>|'<document start>')",
        "the indentation does not match the lines above: "
        "indent all keys of an entry alike, and all dashes of a list",
    ),
    _Explanation(
        "mapping values are not allowed",
        "a colon in the wrong place: "
        "indent this line as the one above, or put text with a colon into quotes",
    ),
    _Explanation(
        "sequence entries are not allowed",
        "a dash in the wrong place: begin the list on the next line",
    ),
    _Explanation(
        "could not find expected ':'",
        "not a `key: value`: put a space after the colon, and after the dash of a list",
        where_it_began=True,
    ),
    _Explanation(
        "expected ',' or", "the bracket of line {began} is not closed, or a comma is missing"
    ),
    _Explanation("found unexpected end of stream", "a quote is not closed", where_it_began=True),
    _Explanation("expected the node content", "a value is missing, or a bracket is not closed"),
    _Explanation(
        "found unknown escape character '(.)'",
        "\\{} means nothing in double quotes: use single quotes",
    ),
    _Explanation(
        "found undefined alias '(.*)'",
        "*{} refers to nothing above: put text that begins with * into quotes",
    ),
    _Explanation(
        "but found another document", "a second document begins: write one document in each file"
    ),
)


def explain(error: "yaml.MarkedYAMLError") -> tuple[int, str]:
    """Return the line of a syntax error, and what is wrong there."""
    problem = str(error.problem)
    line, began = _line_of_mark(error.problem_mark), _line_of_mark(error.context_mark)
    for each in _ALL:
        if found := re.match(each.pattern, problem):
            text = each.text.format(*found.groups(), began=began)
            return began if each.where_it_began else line, f"not valid YAML: {text}"
    return line, f"not valid YAML: {problem}"


def _line_of_mark(mark: "yaml.Mark | None") -> int:
    return 1 if mark is None else mark.line + 1


# From YAML to plain values

MAX_FILE_BYTES = 1 << 20  # bytes: nobody writes more by hand
MAX_VALUES = 20_000  # in one file with its aliases expanded: a few of them may mean billions
MAX_DEPTH = 40  # also ends an alias that holds itself
MAX_NUMBER_LENGTH = 40  # characters

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")


class _Unreadable(Exception):
    """A file cannot be read any further; its arguments are the line and the reason."""


def read_file(path: Path) -> Document | Mistake:
    """Return the document of a file, or a mistake if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return Mistake(str(path), 0, "", f"cannot be read: {error.strerror or error}")
    if len(content) > MAX_FILE_BYTES:
        return Mistake(str(path), 0, "", f"too large: write at most {MAX_FILE_BYTES:,} bytes")
    return read_text(content, str(path), path.parent)


def read_text(content: bytes | str, name: str, folder: Path) -> Document | Mistake:
    """Return the document of a YAML text with its mistakes, or a mistake if it cannot be read."""
    import yaml  # noqa: PLC0415 - see the top of this file

    try:
        reader = _Reader(name, yaml)
        value = reader.value(_root(content, yaml), ())
    except _Unreadable as error:
        line, text = error.args
    except yaml.MarkedYAMLError as error:
        line, text = explain(error)
    except RecursionError:
        line, text = 1, f"nested too deeply: write at most {MAX_DEPTH} levels"
    else:
        return Document(name, folder, value, reader.lines, reader.mistakes)
    return Mistake(name, line, "", text)


def _root(content: bytes | str, pyyaml: Any) -> "yaml.Node":
    text = _decoded(content)
    if found := pyyaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        code = f"U+{ord(found.group()):04X}"
        raise _Unreadable(line, f"the character {code} is not allowed: remove it")
    root = pyyaml.compose(text, Loader=pyyaml.SafeLoader)
    if root is None:
        raise _Unreadable(1, "empty: write version, namespace and entries")
    return root


def _decoded(content: bytes | str) -> str:
    if isinstance(content, str):
        return content
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        return content.decode("utf-16" if content.startswith(marks) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _Unreadable(line, f"not in UTF-8: save it as UTF-8 ({error.reason})") from None


class _Reader:
    """Turns the nodes of a file into values, and notes their lines.

    Anything that is not plain is a mistake, but is read as if it were, so that the rest is checked.
    """

    def __init__(self, name: str, pyyaml: Any) -> None:
        self.lines: dict[Steps, int] = {}
        self.mistakes: list[Mistake] = []
        self._name = name
        # Of this class only the plain scalars are used: text, numbers, dates.
        self._scalars: Any = pyyaml.constructor.SafeConstructor()
        self._refused: type[Exception] = pyyaml.constructor.ConstructorError

    def value(self, node: Any, steps: Steps, line: int | None = None) -> Any:
        """Return the value of a node; its line is that of its key, if it has one."""
        here = _line_of(node)
        if len(steps) > MAX_DEPTH:
            raise _Unreadable(here, f"nested too deeply: write at most {MAX_DEPTH} levels")
        if len(self.lines) >= MAX_VALUES:
            text = f"more than {MAX_VALUES:,} values with aliases expanded: write fewer"
            raise _Unreadable(here, text)
        self.lines[steps] = line or here
        match node.id:
            case "mapping":
                self._check_tag(node, "tag:yaml.org,2002:map")
                return {
                    key.value: self.value(each, (*steps, key.value), _line_of(key))
                    for key, each in self._items(node)
                }
            case "sequence":
                self._check_tag(node, "tag:yaml.org,2002:seq")
                return [self.value(each, (*steps, i)) for i, each in enumerate(node.value)]
            case _:
                return self._scalar(node)

    def _scalar(self, node: "yaml.Node") -> Any:
        if node.tag in _NUMBERS and (why := _why_odd(node.value)):
            self._note(node, why)
            return node.value
        try:
            return self._scalars.construct_object(node)
        except self._refused:
            self._check_tag(node, "")
        except (ValueError, LookupError, AttributeError) as error:  # whatever the tag promised
            text = f"{node.value!r} looks like a number or a date, but is not one ({error})"
            self._note(node, f"{text}: put it into quotes")
        return node.value

    def _items(self, node: "yaml.Node") -> "list[tuple[yaml.Node, yaml.Node]]":
        items: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.id != "scalar":
                self._note(key, "a key is plain text, not a list or a mapping")
            elif key.tag == "tag:yaml.org,2002:merge":
                self._note(key, "merge keys (<<) are not supported: write the keys out")
            elif key.value in items:
                self._note(key, f"the key {key.value!r} is given twice: remove one")
            else:
                items[key.value] = key, value
        return list(items.values())

    def _check_tag(self, node: "yaml.Node", plain: str) -> None:
        if node.tag != plain:
            self._note(node, f"the tag {node.tag} is not allowed: write plain values")

    def _note(self, node: "yaml.Node", text: str) -> None:
        self.mistakes.append(Mistake(self._name, _line_of(node), "", text))


def _why_odd(number: str) -> str:
    """Return what is wrong with a number that YAML would read differently than intended."""
    if len(number) > MAX_NUMBER_LENGTH:
        return f"a number of {len(number):,} characters: put it into quotes"
    if ":" in number:
        return (
            f"{number} would be read as a base-60 number: "
            "put it into quotes, or write a duration, such as 90m"
        )
    if _OCTAL.fullmatch(number):
        return f"{number} would be read as an octal number: put it into quotes, or drop the 0"
    return ""


def _line_of(node: "yaml.Node") -> int:
    return node.start_mark.line + 1
