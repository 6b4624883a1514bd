"""One word for one thing: no class name is defined in two modules."""

import ast
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import perdure

SOURCE = Path(perdure.__file__).parent
PUBLIC = (
    "perdure",
    "perdure.approvals",
    "perdure.entries",
    "perdure.errors",
    "perdure.otp",
    "perdure.process",
    "perdure.testing",
)


def defined() -> dict[str, list[str]]:
    """Return the modules that define each class whose name has no leading underscore."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return found


def test_no_class_name_is_defined_in_two_modules() -> None:
    twice = {name: modules for name, modules in defined().items() if len(modules) > 1}
    assert twice == {}


def test_a_public_name_means_one_class() -> None:
    known = defined()
    for module in PUBLIC:
        for name in import_module(module).__all__:
            assert len(known.get(name, ())) <= 1, (module, name, known[name])
