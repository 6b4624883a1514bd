"""The rules of the code base that no linter knows.

A rule takes a `Source` and yields its violations as `path:line: what is wrong`.
The rules know nothing of the disk, so that each can be tried on planted text.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

FUNCTION_LINES = 50
MODULE_NAMES_THAT_SAY_NOTHING = {"common", "core", "helpers", "manager", "misc", "util", "utils"}
FIRST_PARTY = {"perdure"}

# The only files that may wait for, or look at, real time.
REAL_TIME = {"src/perdure/base/clock.py"}
WAITS = {"anyio.sleep", "asyncio.sleep", "time.sleep"}
LOOKS = {
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "process_time", "time")
    for unit in ("", "_ns")
}

# Spelled so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(T[O]DO|F[I]XME)\b")
MACHINE_PATH = re.compile(r"(?<![\w.-])/(home|root|Users|work|workspace)/|[A-Z]:\\Users")
REGISTRY = re.compile(
    r"\b(pypi\.org|pythonhosted\.org|npmjs\.(org|com)|anaconda\.org|crates\.io|rubygems\.org)\b"
)


@dataclass(frozen=True)
class Source:
    """One text file, by its path from the root of the repository."""

    path: PurePosixPath
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    @cached_property
    def imported(self) -> dict[str, str]:
        """The dotted name behind each name that the file imports."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=aliases):
                    names |= dict(_bound_by_import(alias) for alias in aliases)
                case ast.ImportFrom(module=str(module), names=aliases):
                    names |= {a.asname or a.name: f"{module}.{a.name}" for a in aliases}
                case _:
                    pass
        return names

    @property
    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call with the dotted name of what is called."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (name := self._dotted(node.func)):
                yield name, node

    def _dotted(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return self.imported.get(name, name)
            case ast.Attribute(value=value, attr=attr) if owner := self._dotted(value):
                return f"{owner}.{attr}"
            case _:
                return ""

    def at(self, line: int, message: str) -> str:
        return f"{self.path}:{line}: {message}"


def _bound_by_import(alias: ast.alias) -> tuple[str, str]:
    if alias.asname:
        return alias.asname, alias.name
    top = alias.name.split(".")[0]  # `import a.b` binds `a`
    return top, top


def functions_are_short(source: Source) -> Iterator[str]:
    for function in source.functions:
        body = function.body[1:] if ast.get_docstring(function) is not None else function.body
        lines = (function.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > FUNCTION_LINES:
            what = f"`{function.name}` has {lines} lines, the limit is {FUNCTION_LINES}"
            yield source.at(function.lineno, what)


def nothing_waits_for_real_time(source: Source) -> Iterator[str]:
    """Sleeping makes tests slow and flaky; `asyncio.sleep(0)` is a mere turn of the loop."""
    if str(source.path) in REAL_TIME:
        return
    for name, call in source.calls:
        if name in WAITS and not _is_a_mere_turn(name, call):
            yield source.at(call.lineno, f"`{name}` waits for real time; use the virtual clock")
        if name in LOOKS:
            yield source.at(call.lineno, f"`{name}` looks at real time; use the injected clock")


def _is_a_mere_turn(name: str, call: ast.Call) -> bool:
    match call.args:
        case [ast.Constant(value=0)]:
            return name != "time.sleep"
        case _:
            return False


def imports_stand_at_the_top(source: Source) -> Iterator[str]:
    for function in source.functions:
        for node in ast.walk(function):
            match node:
                case ast.Import(names=aliases):
                    modules = [alias.name for alias in aliases]
                case ast.ImportFrom(module=module, level=level):
                    modules = ["perdure"] if level else [module or ""]
                case _:
                    continue
            if any(module.split(".")[0] in FIRST_PARTY for module in modules):
                yield source.at(node.lineno, f"`{function.name}` imports from perdure inside")


def nothing_prints(source: Source) -> Iterator[str]:
    for name, call in source.calls:
        if name == "print":
            yield source.at(call.lineno, "`print`; emit a telemetry event instead")


def module_has_a_docstring(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield source.at(1, "the module has no docstring")


def module_name_says_what_is_in_it(source: Source) -> Iterator[str]:
    for part in (*source.path.parent.parts, source.path.stem):
        if part in MODULE_NAMES_THAT_SAY_NOTHING:
            yield source.at(1, f"`{part}` says nothing about what is in it")


def nothing_is_left_unfinished(source: Source) -> Iterator[str]:
    yield from _lines_with(source, UNFINISHED, "marks unfinished work; finish it or open an issue")


def no_path_of_one_machine(source: Source) -> Iterator[str]:
    yield from _lines_with(source, MACHINE_PATH, "is a path of one machine")


def no_host_of_a_registry(source: Source) -> Iterator[str]:
    yield from _lines_with(source, REGISTRY, "names the host of a package registry")


def _lines_with(source: Source, pattern: re.Pattern[str], message: str) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if found := pattern.search(line):
            yield source.at(number, f"`{found[0]}` {message}")
