"""The public API is a committed list, so that a change of it is seen and meant.

`python -m tests.test_public_api --write` writes the list anew.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from perdure.base import errors

MODULES = (
    "perdure",
    "perdure.approvals",
    "perdure.entries",
    "perdure.errors",
    "perdure.otp",
    "perdure.process",
    "perdure.testing",
)
LIST = Path(__file__).with_name("public_api.txt")
REWRITE = "if it is meant, run `python -m tests.test_public_api --write`"


def exported() -> list[str]:
    return [f"{name}: {export}" for name in MODULES for export in sorted(exports(name))]


def exports(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return list(getattr(module, "__all__", ()))


def documented_things() -> list[tuple[str, str]]:
    return [(module, name) for module in MODULES for name in exports(module)]


@pytest.mark.parametrize("module_name", MODULES)
def test_a_public_module_lists_each_of_its_names_once(module_name: str) -> None:
    names = exports(module_name)
    assert names, f"{module_name} has no __all__"
    assert len(names) == len(set(names))


def test_the_public_names_are_the_committed_ones() -> None:
    committed = LIST.read_text("utf-8").split("\n")[:-1]
    assert committed == exported(), REWRITE


@pytest.mark.parametrize(("module_name", "name"), documented_things())
def test_a_public_name_is_there_and_documented(module_name: str, name: str) -> None:
    thing: object = getattr(importlib.import_module(module_name), name)
    assert is_documented(thing), f"{module_name}.{name} has no docstring"


def is_documented(thing: object) -> bool:
    """Constants and type aliases cannot have a docstring; all else must."""
    if not isinstance(thing, type | ModuleType) and not inspect.isroutine(thing):
        return True
    doc = (thing.__doc__ or "").strip()
    # What a dataclass or a NamedTuple writes by itself, `Name(field, …)`, explains nothing.
    return bool(doc) and not doc.startswith(f"{thing.__name__}(")


def drawn_parents(tree: str) -> dict[str, str | None]:
    """Reads a drawn tree: each name with the one that it hangs on."""
    parents: dict[str, str | None] = {}
    branch: list[tuple[int, str]] = []
    for line in tree.splitlines():
        found = re.match(r"[\s│├└─]*([A-Z]\w+)(\(\w+\))?(\s{2,}|$)", line)
        if not found:
            continue
        column, name = found.start(1), found[1]
        branch = [(at, parent) for at, parent in branch if at < column]
        parents[name] = branch[-1][1] if branch else None
        branch.append((column, name))
    return parents


def test_the_module_of_errors_draws_every_exception_below_its_base() -> None:
    classes = {
        name: cls
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, BaseException) and cls.__module__ == errors.__name__
    }
    drawn = drawn_parents(errors.__doc__ or "")
    assert set(drawn) == set(classes)
    for name, parent in drawn.items():
        own_bases = [base.__name__ for base in classes[name].__bases__ if base.__name__ in classes]
        assert parent in own_bases if parent else not own_bases, f"{name} hangs on {parent}"


def test_a_drawn_tree_is_read_with_its_branches() -> None:
    tree = """Title.

    Base(Exception)     all
     ├── One            first
     │    └── Two       below
     └── Three          last

    Other(Exception)    apart
    """
    expected = {"Base": None, "One": "Base", "Two": "One", "Three": "Base", "Other": None}
    assert drawn_parents(tree) == expected


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    LIST.write_text("".join(f"{line}\n" for line in exported()), "utf-8")
