"""From a source to its function: the only place that runs code which entries name."""

import importlib
import importlib.util
import inspect
import sys
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
    for id, definition in plan.definitions.items():
        try:
            functions[id] = load_function(id, definition.source)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises
            field = "method" if isinstance(error, SpawnError) else "source"
            mistakes.append(definition.at.inside(field).mistake(_what_failed(error)))
    for service in plan.services.values():
        function = functions.get(service.process)
        problem = function and _problem_of_input(function, service.input)
        if problem:
            mistakes.append(service.at.inside("input").mistake(problem))
    if mistakes:
        raise EntriesError(sorted(mistakes))
    return functions


def load_function(id: str, source: Source) -> Function:
    """Load the function of an entry.

    Raises:
        SpawnError: There is no `async def` function of that name in it.
    """
    if not isinstance(source, FileSource | ModuleSource):
        check_function(source, "an entry")
        return source
    module = _module(id, source)
    function: Any = getattr(module, source.method, None)
    if function is None:
        methods = [name for name, each in vars(module).items() if inspect.iscoroutinefunction(each)]
        raise SpawnError(f"{source} has no {source.method!r}{instead(source.method, methods)}")
    check_function(function, "an entry")
    return function


def _module(id: str, source: FileSource | ModuleSource) -> ModuleType:
    if isinstance(source, ModuleSource):
        return importlib.import_module(source.module)
    return load_file(id, source.path.resolve())


def load_file(id: str, path: Path) -> ModuleType:
    """Run a file as a module; as with an import, one that was run before is not run again.

    Its name is that of an entry, so that reports and trees speak of what was declared;
    but without dots, since whoever imports a dotted name looks for a package.
    """
    name = id.replace(".", "/")
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


def _what_failed(error: BaseException) -> str:
    if isinstance(error, SpawnError):
        return str(error)
    return f"it cannot be loaded: {describe(error)}"


def _problem_of_input(function: Function, given: tuple[Any, ...]) -> str | None:
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        return f"the process does not take this input: {error}"
    return None
