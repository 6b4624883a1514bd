"""What a file says, and at which line it says it."""

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from perdure.base.errors import Mistake

Key = str | int
Steps = tuple[Key, ...]


class Document(NamedTuple):
    """The content of one file, or of a mapping that is none.

    Attributes:
        name: Names it in messages.
        folder: Where `file://` begins.
        value: What it says.
        lines: The line of each value, by the keys and indices that lead to it.
        mistakes: Those that were found while it was read.
    """

    name: str
    folder: Path
    value: Any
    lines: Mapping[Steps, int]
    mistakes: Sequence[Mistake] = ()


class Location(NamedTuple):
    """A value in a document, of an entry if its name is known."""

    document: Document
    steps: Steps = ()
    entry: str = ""

    def inside(self, key: Key) -> "Location":
        """Give the place of a value in this one."""
        return self._replace(steps=(*self.steps, key))

    def first_of(self, *keys: Key) -> "Location":
        """Give the place of the first of these that stands in the file."""
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
        """Tell what is wrong here."""
        return Mistake(self.document.name, self.line, self.entry, text)

    def field(self, depth: int) -> str:
        """Spell the way to the value from a depth on: `lifecycle.restart.jitter`."""
        return ".".join(map(str, self.steps[depth:]))


# What a syntax error in a YAML file means, in words for who has not learnt YAML's grammar.


class _Words(NamedTuple):
    """What we say where the parser says something that fits the pattern."""

    pattern: str
    text: str  # with the groups of the pattern, and the line where it began
    where_it_began: bool = False  # that line is told: the parser sees it only later


_ALL = (
    _Words(r"found character '\\t'", "a tab: indent with spaces"),
    _Words(r"found character '(.)'", "text cannot begin with {}: put it into quotes"),
    _Words(
        "expected <block end>, but found '<scalar>'",
        "text behind a closed quote or bracket: take it out, or put the whole text into quotes",
    ),
    _Words(
        "expected (?:chomping|a comment or)",
        "text cannot begin with | or >: put it into quotes",
    ),
    _Words(
        "expected alphabetic or numeric character",
        "text cannot begin with * or &: put it into quotes",
    ),
    _Words(
        "expected (?:<block end>|'<document start>')",
        "the indentation does not fit what stands above: "
        "give all keys of an entry the same, and the dashes of a list",
    ),
    _Words(
        "mapping values are not allowed",
        "a colon where none can stand: "
        "indent this line as the one above, or put text with a colon into quotes",
    ),
    _Words(
        "sequence entries are not allowed",
        "a dash where none can stand: begin the list on the next line",
    ),
    _Words(
        "could not find expected ':'",
        "no `key: value`: a space belongs behind the colon, and behind the dash of a list",
        where_it_began=True,
    ),
    _Words("expected ',' or", "the bracket of line {began} is not closed, or a comma is missing"),
    _Words("found unexpected end of stream", "a quote is not closed", where_it_began=True),
    _Words("expected the node content", "a value is missing, or a bracket is not closed"),
    _Words(
        "found unknown escape character '(.)'",
        "\\{} means nothing in double quotes: use single ones",
    ),
    _Words(
        "found undefined alias '(.*)'",
        "*{} stands for nothing above: text that begins with * goes into quotes",
    ),
    _Words("but found another document", "a second document begins: write one in a file"),
)


def explain(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """Give the line of a syntax error, and what is wrong there."""
    problem = str(error.problem)
    line, began = _line_of_mark(error.problem_mark), _line_of_mark(error.context_mark)
    for words in _ALL:
        if found := re.match(words.pattern, problem):
            text = words.text.format(*found.groups(), began=began)
            return began if words.where_it_began else line, f"no YAML: {text}"
    return line, f"no YAML: {problem}"


def _line_of_mark(mark: yaml.Mark | None) -> int:
    return 1 if mark is None else mark.line + 1


# YAML to plain values, safely: nothing is constructed, everything is bounded, lines are kept.

LARGEST_FILE = 1 << 20  # bytes: nobody writes more by hand
MOST_VALUES = 20_000  # in one file, after its aliases are followed: a few may mean billions
DEEPEST = 40  # also ends an alias that holds itself
LONGEST_NUMBER = 40  # characters

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")


_compose: Any = yaml.compose  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_unprintable: Any = yaml.reader.Reader.NON_PRINTABLE


class _Unreadable(Exception):
    """A file cannot be read any further; its arguments are the line and the reason."""


def read_file(path: Path) -> Document | Mistake:
    """Read a file; what cannot be read is a mistake."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        return Mistake(str(path), 0, "", f"cannot be read: {error.strerror or error}")
    if len(content) > LARGEST_FILE:
        return Mistake(str(path), 0, "", f"too large: write at most {LARGEST_FILE:,} bytes")
    return read_text(content, str(path), path.parent)


def read_text(content: bytes | str, name: str, folder: Path) -> Document | Mistake:
    """Read YAML; what cannot be read is a mistake, and what can be has its mistakes with it."""
    try:
        reader = _Reader(name)
        value = reader.value(_root(content), ())
    except _Unreadable as error:
        line, text = error.args
    except yaml.MarkedYAMLError as error:
        line, text = explain(error)
    except RecursionError:
        line, text = 1, f"nested too deeply: write at most {DEEPEST} levels"
    else:
        return Document(name, folder, value, reader.lines, reader.mistakes)
    return Mistake(name, line, "", text)


def _root(content: bytes | str) -> yaml.Node:
    root = _compose(_printable(_decoded(content)), Loader=yaml.SafeLoader)
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


def _printable(text: str) -> str:
    if found := _unprintable.search(text):
        line = text.count("\n", 0, found.start()) + 1
        code = f"U+{ord(found.group()):04X}"
        raise _Unreadable(line, f"the character {code} is not allowed: take it out")
    return text


class _Reader:
    """Turns the nodes of a file into values, and notes their lines.

    What is not plain is a mistake, and is read as if it were: so that the rest is checked too.
    """

    def __init__(self, name: str) -> None:
        self.lines: dict[Steps, int] = {}
        self.mistakes: list[Mistake] = []
        self._name = name
        # Of this class only the plain scalars are used: text, numbers, dates.
        self._scalars: Any = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, steps: Steps, line: int | None = None) -> Any:
        """Give the value of a node; its line is that of its key, if it has one."""
        here = _line_of(node)
        if len(steps) > DEEPEST:
            raise _Unreadable(here, f"nested too deeply: write at most {DEEPEST} levels")
        if len(self.lines) >= MOST_VALUES:
            text = f"more than {MOST_VALUES:,} values, aliases followed: write less"
            raise _Unreadable(here, text)
        self.lines[steps] = line or here
        match node:
            case yaml.MappingNode():
                self._check_tag(node, "tag:yaml.org,2002:map")
                return {
                    key.value: self.value(each, (*steps, key.value), _line_of(key))
                    for key, each in self._items(node)
                }
            case yaml.SequenceNode():
                self._check_tag(node, "tag:yaml.org,2002:seq")
                return [self.value(each, (*steps, i)) for i, each in enumerate(node.value)]
            case _:
                return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        if node.tag in _NUMBERS and (why := _why_odd(node.value)):
            self._tell(node, why)
            return node.value
        try:
            return self._scalars.construct_object(node)
        except yaml.constructor.ConstructorError:
            self._check_tag(node, "")
        except (ValueError, LookupError, AttributeError) as error:  # whatever the tag promised
            text = f"{node.value!r} looks like a number or a date, and is none ({error})"
            self._tell(node, f"{text}: put it into quotes")
        return node.value

    def _items(self, node: yaml.MappingNode) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
        items: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._tell(key, "a key is plain text, not a list or a mapping")
            elif key.tag == "tag:yaml.org,2002:merge":
                self._tell(key, "merge keys (<<) are not supported: write the keys out")
            elif key.value in items:
                self._tell(key, f"the key {key.value!r} stands here twice: leave one out")
            else:
                items[key.value] = key, value
        return list(items.values())

    def _check_tag(self, node: yaml.Node, plain: str) -> None:
        if node.tag != plain:
            self._tell(node, f"the tag {node.tag} is not allowed: write plain values")

    def _tell(self, node: yaml.Node, text: str) -> None:
        self.mistakes.append(Mistake(self._name, _line_of(node), "", text))


def _why_odd(number: str) -> str:
    """Say what is wrong with a number that YAML would take for one that nobody meant."""
    if len(number) > LONGEST_NUMBER:
        return f"a number of {len(number):,} characters: put it into quotes"
    if ":" in number:
        return (
            f"{number} would be read as a base-60 number: "
            "put it into quotes, or write a duration, such as 90m"
        )
    if _OCTAL.fullmatch(number):
        return f"{number} would be read as an octal number: put it into quotes, or drop the 0"
    return ""


def _line_of(node: yaml.Node) -> int:
    return node.start_mark.line + 1
