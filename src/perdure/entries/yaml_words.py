"""What a syntax error in a YAML file means, in words for who has not learnt YAML's grammar."""

import re
from typing import NamedTuple

import yaml


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
    line, began = _line_of(error.problem_mark), _line_of(error.context_mark)
    for words in _ALL:
        if found := re.match(words.pattern, problem):
            text = words.text.format(*found.groups(), began=began)
            return began if words.where_it_began else line, f"no YAML: {text}"
    return line, f"no YAML: {problem}"


def _line_of(mark: yaml.Mark | None) -> int:
    return 1 if mark is None else mark.line + 1
