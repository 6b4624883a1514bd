"""YAML to values: safe, bounded, with the line of everything."""

from pathlib import Path

import pytest

from perdure.base.errors import Mistake
from perdure.entries.yaml import MAX_FILE_BYTES, Document, read_file, read_text

HERE = Path()


def test_every_value_knows_its_line() -> None:
    document = read_text("a: 1\nb:\n  - x\n  - c: yes\n", "f.yaml", HERE)

    assert isinstance(document, Document)
    assert document.value == {"a": 1, "b": ["x", {"c": True}]}
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "c"): 4,
    }


def test_an_alias_is_the_value_that_it_stands_for() -> None:
    document = read_text("a: &x {b: 1}\nc: *x\n", "f.yaml", HERE)

    assert isinstance(document, Document)
    assert document.value == {"a": {"b": 1}, "c": {"b": 1}}


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", 1, "empty: write version, namespace and entries"),
        ("a: 1\nb: [", 2, "not valid YAML: a value is missing"),
        ("a: 1\n\tb: 1\n", 2, "not valid YAML: a tab: indent with spaces"),
        ("a: @b\n", 1, "not valid YAML: text cannot begin with @: put it into quotes"),
        (
            "- a: 1\n   b: 1\n",
            2,
            "not valid YAML: a colon in the wrong place: indent this line as the",
        ),
        (
            "- a:\n    b: 1\n   c: 1\n",
            3,
            "not valid YAML: the indentation does not match the lines above",
        ),
        ("a:\n - b\n c: d\n", 3, "not valid YAML: the indentation does not match the lines above"),
        (" a: 1\nb: 1\n", 2, "not valid YAML: the indentation does not match the lines above"),
        (
            "a: 'it's'\n",
            1,
            "not valid YAML: text after a closed quote or bracket: remove it, or put",
        ),
        (
            "a: {b: 1} c\n",
            1,
            "not valid YAML: text after a closed quote or bracket: remove it, or put",
        ),
        ("a: |b\n", 1, "not valid YAML: text cannot begin with | or >: put it into quotes"),
        ("a: >-b\n", 1, "not valid YAML: text cannot begin with | or >: put it into quotes"),
        ("a: * b\n", 1, "not valid YAML: text cannot begin with * or &: put it into quotes"),
        (
            "a: - b\n",
            1,
            "not valid YAML: a dash in the wrong place: begin the list on the next line",
        ),
        ("a: 1\nb:2\nc: 3\n", 2, "not valid YAML: not a `key: value`: put a space after the colon"),
        (
            "a:\n  {b: 1\nc: 2\n",
            3,
            "not valid YAML: the bracket of line 2 is not closed, or a comma is",
        ),
        ("a: [1,\n  2\n", 3, "not valid YAML: the bracket of line 1 is not closed, or a comma is"),
        ("a: 1\nb: 'c\nd: e\n", 2, "not valid YAML: a quote is not closed"),
        (
            'a: "C:\\dir"\n',
            1,
            "not valid YAML: \\d means nothing in double quotes: use single quotes",
        ),
        (
            "a: *b\n",
            1,
            "not valid YAML: *b refers to nothing above: put text that begins with * into",
        ),
        (
            "a: 1\n---\nb: 2\n",
            2,
            "not valid YAML: a second document begins: write one document in each file",
        ),
        ("%YAML 9\n---\na: 1\n", 1, "not valid YAML: expected a digit or '.', but found"),
        ("a: &x [*x]\n", 1, "nested too deeply: write at most 40 levels"),
        ("[" * 5_000, 1, "nested too deeply: write at most 40 levels"),
        (LAUGHS, None, "more than 20,000 values with aliases expanded: write fewer"),
        (b"a: 1\nb: caf\xe9\n", 2, "not in UTF-8: save it as UTF-8"),
        ("a: 1\nb: \x00\n", 2, "the character U+0000 is not allowed: remove it"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_cannot_be_read_is_a_mistake_at_its_line(
    text: str | bytes, line: int | None, told: str
) -> None:
    mistake = read_text(text, "f.yaml", HERE)

    assert isinstance(mistake, Mistake)
    assert mistake.text.startswith(told)
    assert (mistake.file, mistake.entry) == ("f.yaml", "")
    assert line is None or mistake.line == line


@pytest.mark.parametrize(
    ("text", "line", "told", "value"),
    [
        (
            "a: 1\nb:\n  c: 1\n  c: 2\n",
            4,
            "the key 'c' is given twice: remove one",
            {"a": 1, "b": {"c": 1}},
        ),
        ("a: 1\n? [b]\n: c\n", 2, "a key is plain text, not a list or a mapping", {"a": 1}),
        (
            "a: &x {b: 1}\nc:\n  <<: *x\n",
            3,
            "merge keys (<<) are not supported: write the keys out",
            {"a": {"b": 1}, "c": {}},
        ),
        (
            "a:\n  - !!python/object/apply:os.system [echo]\n",
            2,
            (
                "the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed: "
                "write plain values"
            ),
            {"a": [["echo"]]},
        ),
        (
            "a: 1\nb: 1:30:00\n",
            2,
            "1:30:00 would be read as a base-60 number",
            {"a": 1, "b": "1:30:00"},
        ),
        ("a: 1:30\n", 1, "1:30 would be read as a base-60 number", {"a": "1:30"}),
        ("a: [-2:05.5]\n", 1, "-2:05.5 would be read as a base-60 number", {"a": ["-2:05.5"]}),
        ("a: !!int 1:30\n", 1, "1:30 would be read as a base-60 number", {"a": "1:30"}),
        ("a: 0777\n", 1, "0777 would be read as an octal number", {"a": "0777"}),
        (f"a: 1\nb: {'9' * 41}\n", 2, "a number of 41 characters", {"a": 1, "b": "9" * 41}),
        (f"a: {'9' * 9000}\n", 1, "a number of 9,000 characters", {"a": "9" * 9000}),
        (f"a: 1.{'9' * 500}\n", 1, "a number of 502 characters", {"a": f"1.{'9' * 500}"}),
        ("a: !mine x\n", 1, "the tag !mine is not allowed: write plain values", {"a": "x"}),
        (
            "a: !mine {b: c}\n",
            1,
            "the tag !mine is not allowed: write plain values",
            {"a": {"b": "c"}},
        ),
        (
            "a: 2024-02-31\n",
            1,
            (
                "'2024-02-31' looks like a number or a date, but is not one "
                "(day is out of range for month): put it into quotes"
            ),
            {"a": "2024-02-31"},
        ),
        *(
            (f"a: !!{tag} x\n", 1, "'x' looks like a number or a date, but is not one", {"a": "x"})
            for tag in ("int", "float", "bool", "timestamp")
        ),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_plain_value_is_a_mistake_and_is_read_as_if_it_were_one(
    text: str, line: int, told: str, value: object
) -> None:
    document = read_text(text, "f.yaml", HERE)

    assert isinstance(document, Document)
    assert document.value == value
    [mistake] = document.mistakes
    assert mistake.text.startswith(told)
    assert mistake.line == line


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_may_begin_with_a_mark_of_its_encoding(encoding: str) -> None:
    document = read_text("a: 앱\r\nb: 2\r\n".encode(encoding), "f.yaml", HERE)

    assert isinstance(document, Document)
    assert document.value == {"a": "앱", "b": 2}
    assert document.lines["b",] == 2


def test_a_file_that_is_too_large_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("#" * (MAX_FILE_BYTES + 1))

    mistake = read_file(path)

    assert isinstance(mistake, Mistake)
    assert str(mistake) == f"{path}: too large: write at most 1,048,576 bytes"


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    mistake = read_file(tmp_path / "none.yaml")

    assert isinstance(mistake, Mistake)
    assert mistake.text == "cannot be read: No such file or directory"
