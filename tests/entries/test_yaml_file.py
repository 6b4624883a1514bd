"""YAML to values: safe, bounded, with the line of everything."""

from pathlib import Path

import pytest

from perdure.base.errors import Mistake
from perdure.entries.document import Document
from perdure.entries.yaml_file import LARGEST_FILE, read_file, read_text

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
        ("a: 1\nb: [", 2, "no YAML: expected the node content, but found '<stream end>'"),
        ("a: 1\n---\nb: 2\n", 2, "no YAML: but found another document"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, "the key 'c' stands here twice: leave one out"),
        ("a: 1\n? [b]\n: c\n", 2, "a key is plain text, not a list or a mapping"),
        (
            "a: &x {b: 1}\nc:\n  <<: *x\n",
            3,
            "merge keys (<<) are not supported: write the keys out",
        ),
        (
            "a:\n  - !!python/object/apply:os.system [echo]\n",
            2,
            (
                "the tag tag:yaml.org,2002:python/object/apply:os.system is not allowed: "
                "write plain values"
            ),
        ),
        ("a: !mine x\n", 1, "the tag !mine is not allowed: write plain values"),
        ("a: !mine {b: c}\n", 1, "the tag !mine is not allowed: write plain values"),
        (
            "a: 2024-02-31\n",
            1,
            (
                "'2024-02-31' looks like a number or a date, and is none "
                "(day is out of range for month): put it into quotes"
            ),
        ),
        ("a: &x [*x]\n", 1, "nested too deeply: write at most 40 levels"),
        ("[" * 5_000, 1, "nested too deeply: write at most 40 levels"),
        (LAUGHS, 1, "more than 20,000 values, aliases followed: write less"),
        (b"a: \xff\xfe\n", 1, "no YAML: unacceptable character #x00ff"),
        ("a: \x00\n", 1, "no YAML: unacceptable character #x0000"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_plain_yaml_is_a_mistake_at_its_line(
    text: str | bytes, line: int, told: str
) -> None:
    mistake = read_text(text, "f.yaml", HERE)

    assert isinstance(mistake, Mistake)
    assert mistake.text.startswith(told)
    assert (mistake.file, mistake.entry) == ("f.yaml", "")
    if text is not LAUGHS:
        assert mistake.line == line


def test_a_file_that_is_too_large_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("#" * (LARGEST_FILE + 1))

    mistake = read_file(path)

    assert isinstance(mistake, Mistake)
    assert str(mistake) == f"{path}: too large: write at most 1,048,576 bytes"


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    mistake = read_file(tmp_path / "none.yaml")

    assert isinstance(mistake, Mistake)
    assert mistake.text == "cannot be read: No such file or directory"
