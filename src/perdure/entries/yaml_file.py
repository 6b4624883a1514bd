"""YAML to plain values, safely: nothing is constructed, everything is bounded, lines are kept."""

from pathlib import Path
from typing import Any

import yaml

from perdure.base.errors import Mistake
from perdure.entries.document import Document, Steps

LARGEST_FILE = 1 << 20  # bytes: nobody writes more by hand
MOST_VALUES = 20_000  # in one file, after its aliases are followed: a few may mean billions
DEEPEST = 40  # also ends an alias that holds itself


_compose: Any = yaml.compose  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


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
    """Read YAML; what cannot be read is a mistake."""
    try:
        root = _compose(content, Loader=yaml.SafeLoader)
        if root is None:
            return Mistake(name, 1, "", "empty: write version, namespace and entries")
        reader = _Reader()
        value = reader.value(root, ())
    except _Refused as refused:
        return Mistake(name, *refused.args)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return Mistake(name, mark.line + 1 if mark else 1, "", f"no YAML: {error.problem}")
    except yaml.YAMLError as error:  # bytes that are no text
        return Mistake(name, 1, "", f"no YAML: {' '.join(str(error).split())}")
    except RecursionError:
        return Mistake(name, 1, "", f"nested too deeply: write at most {DEEPEST} levels")
    return Document(name, folder, value, reader.lines)


class _Refused(Exception):
    """Its arguments are those of a `Mistake` behind the file."""

    def __init__(self, node: yaml.Node, text: str) -> None:
        super().__init__(node.start_mark.line + 1, "", text)


class _Reader:
    """Turns the nodes of a file into values, and notes their lines."""

    def __init__(self) -> None:
        self.lines: dict[Steps, int] = {}
        # Of this class only the plain scalars are used: text, numbers, dates.
        self._scalars: Any = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, steps: Steps, line: int | None = None) -> Any:
        """Give the value of a node; its line is that of its key, if it has one."""
        if len(steps) > DEEPEST:
            raise _Refused(node, f"nested too deeply: write at most {DEEPEST} levels")
        if len(self.lines) >= MOST_VALUES:
            raise _Refused(node, f"more than {MOST_VALUES:,} values, aliases followed: write less")
        self.lines[steps] = line or node.start_mark.line + 1
        match node:
            case yaml.MappingNode():
                _check_tag(node, "tag:yaml.org,2002:map")
                return {
                    key.value: self.value(each, (*steps, key.value), key.start_mark.line + 1)
                    for key, each in _items(node)
                }
            case yaml.SequenceNode():
                _check_tag(node, "tag:yaml.org,2002:seq")
                return [self.value(each, (*steps, i)) for i, each in enumerate(node.value)]
            case _:
                return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return self._scalars.construct_object(node)
        except yaml.constructor.ConstructorError:
            raise _Refused(node, f"the tag {node.tag} is not allowed: write plain values") from None
        except ValueError as error:
            text = f"{node.value!r} looks like a number or a date, and is none ({error})"
            raise _Refused(node, f"{text}: put it into quotes") from None


def _check_tag(node: yaml.Node, plain: str) -> None:
    if node.tag != plain:
        raise _Refused(node, f"the tag {node.tag} is not allowed: write plain values")


def _items(node: yaml.MappingNode) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    items: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _Refused(key, "a key is plain text, not a list or a mapping")
        if key.tag == "tag:yaml.org,2002:merge":
            raise _Refused(key, "merge keys (<<) are not supported: write the keys out")
        if key.value in items:
            raise _Refused(key, f"the key {key.value!r} stands here twice: leave one out")
        items[key.value] = key, value
    return list(items.values())
