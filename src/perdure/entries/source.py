"""From a source to its function: the only place that runs code which entries name."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.base.errors import EntriesError, Mistake, SpawnError, describe
from perdure.entries.check import instead
from perdure.entries.plan import FileSource, Function, ModuleSource, Plan, Source
from perdure.process.birth import check_function


def load_functions(plan: Plan) -> dict[str, Function]:
    """Load the functions of all definitions, by their ids.

    Raises:
        EntriesError: Some cannot be loaded, or do not take the input of their service.
    """
    mistakes: list[Mistake] = []
    functions: dict[str, Function] = {}
    names: dict[str, Path] = {}
    for id, definition in plan.definitions.items():
        try:
            functions[id] = load_function(id, definition.source, names)
        except SpawnError as error:
            mistakes.append(definition.at.inside("method").mistake(str(error)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises
            text = f"it cannot be loaded: {describe(error)}{_where(error)}"
            mistakes.append(definition.at.first_of("source", "module").mistake(text))
    for service in plan.services.values():
        function = functions.get(service.process)
        problem = function and _problem_of_input(function, service.input)
        if problem:
            mistakes.append(service.at.inside("input").mistake(problem))
    if mistakes:
        raise EntriesError(sorted(mistakes))
    return functions


def load_function(id: str, source: Source, names: dict[str, Path]) -> Function:
    """Load the function of an entry.

    Args:
        id: Of the entry.
        source: Where it is.
        names: The files that were loaded already, by the names of their modules.

    Raises:
        SpawnError: There is no `async def` function of that name in it.
    """
    if not isinstance(source, FileSource | ModuleSource):
        check_function(source, "an entry")
        return source
    module = _module(id, source, names)
    function: Any = getattr(module, source.method, None)
    if function is None:
        methods = [name for name, each in vars(module).items() if inspect.iscoroutinefunction(each)]
        raise SpawnError(f"{source} has no {source.method!r}{instead(source.method, methods)}")
    check_function(function, "an entry")
    return function


def _module(id: str, source: FileSource | ModuleSource, names: dict[str, Path]) -> ModuleType:
    """Give the module of a source.

    A file gets a name with its namespace, so that reports and trees speak of what was declared;
    but without dots, since whoever imports a dotted name looks for a package.
    """
    if isinstance(source, ModuleSource):
        return importlib.import_module(source.module)
    path = source.path.resolve()
    namespace = id.partition(":")[0]
    name = f"{namespace}:{path.stem}".replace(".", "/")
    if names.setdefault(name, path) != path:  # a file in another folder of this namespace
        name = f"{namespace}:{path}".replace(".", "/")
    return load_file(name, path)


def load_file(name: str, path: Path) -> ModuleType:
    """Run a file as a module; as with an import, one that was run before is not run again."""
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does: its own classes look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _where(error: BaseException) -> str:
    """Say at which line of a file, of those that were being imported, it failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f" ({each.filename}:{each.lineno})" for each in frames if each.name == "<module>"]
    return lines[-1] if lines else ""


def _problem_of_input(function: Function, given: tuple[Any, ...]) -> str | None:
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        signature = f"{function.__name__}{inspect.signature(function)}"
        return f"{signature} does not take this input: {error}"
    return None
