"""Turn documents into a plan: read every entry, resolve every reference, find every mistake.

The plan says what to run; `load_functions` then imports the code that it names, which is the only
place where code of the entries is run.
"""

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, cast

from perdure.base.errors import EntriesError, Mistake, SpawnError, describe
from perdure.entries.model import (
    KINDS,
    VERSION,
    Entry,
    HostEntry,
    HostSize,
    Lifecycle,
    ProcessEntry,
    ServiceEntry,
    instead,
    read_struct,
    shown,
)
from perdure.entries.yaml import Document, Location
from perdure.process.lifecycle import check_function

Function: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]


class FileSource(NamedTuple):
    """`source: file://x.py`."""

    path: Path
    method: str

    def __str__(self) -> str:
        return str(self.path)


class ModuleSource(NamedTuple):
    """`source: module:pkg.mod`."""

    module: str
    method: str

    def __str__(self) -> str:
        return f"module {self.module}"


Source: TypeAlias = FileSource | ModuleSource | Function


class HostPlan(NamedTuple):
    """A host that may be started."""

    id: str
    size: HostSize
    lifecycle: Lifecycle
    at: Location


class Definition(NamedTuple):
    """A function that can be spawned by its id, and its defaults."""

    id: str
    source: Source
    host: str | None
    input: tuple[Any, ...] | None
    at: Location


class ServicePlan(NamedTuple):
    """A process that is kept running; without a host it runs on the running loop."""

    id: str
    process: str
    host: str | None
    input: tuple[Any, ...]
    lifecycle: Lifecycle
    at: Location


class EntriesPlan(NamedTuple):
    """All entries by their ids, and which of them are started, in start order."""

    hosts: dict[str, HostPlan]
    definitions: dict[str, Definition]
    services: dict[str, ServicePlan]
    needs: dict[str, list[str]]  # by what can be started; without cycles
    order: list[str]


# From documents to a plan

NAMESPACE = re.compile(r"[^\W\d][\w-]*(\.[^\W\d][\w-]*)*")
NAME = re.compile(r"[^\W\d][\w.-]*")
_TOP = ("version", "namespace", "entries")


def make_plan(documents: Iterable[Document], mistakes: Iterable[Mistake] = ()) -> EntriesPlan:
    """Return one plan for all documents.

    Args:
        documents: The documents that were read.
        mistakes: Those found while reading.

    Raises:
        EntriesError: There are mistakes: all of them.
    """
    resolver = Resolver(mistakes)
    for document in documents:
        resolver.add(document)
    plan = resolver.plan()
    if resolver.mistakes:
        raise EntriesError(sorted(resolver.mistakes))
    return plan


class Resolver:
    """Collects the entries of all documents, then resolves their references to each other."""

    def __init__(self, mistakes: Iterable[Mistake] = ()) -> None:
        """Start without entries."""
        self.mistakes = list(mistakes)
        self._entries: dict[str, tuple[Entry, Location]] = {}
        self._places: dict[str, Location] = {}  # of all ids, also where the entry has mistakes
        self._hosts: dict[str, HostPlan] = {}
        self._definitions: dict[str, Definition] = {}
        self._services: dict[str, ServicePlan] = {}

    def add(self, document: Document) -> None:
        """Add the entries of a document."""
        self.mistakes += document.mistakes
        top = Location(document)
        if not isinstance(document.value, dict):
            self._note(top, "not a mapping: write version, namespace and entries")
            return
        value = cast("dict[str, Any]", document.value)
        for key in [key for key in value if key not in _TOP]:
            self._note(top.inside(key), f"unknown key {key!r}{instead(str(key), _TOP)}")
        version = value.get("version")
        if str(version) != VERSION:
            wanted = f'write version: "{VERSION}"'
            self._note(top.inside("version"), f"the version is {shown(version)}: {wanted}")
        namespace = self._namespace(value.get("namespace"), top.inside("namespace"))
        entries = value.get("entries")
        if not isinstance(entries, list | tuple):
            wrong = "missing" if entries is None else "not a list"
            wanted = "write a list of them, a dash before each"
            self._note(top.inside("entries"), f"the entries are {wrong}: {wanted}")
            return
        for index, entry in enumerate(cast("list[Any]", entries)):
            self._add_entry(namespace, entry, top.inside("entries").inside(index))

    def _namespace(self, value: object, at: Location) -> str:
        if isinstance(value, str) and NAMESPACE.fullmatch(value):
            return value
        wanted = "write words with dots, such as app.workers"
        self._note(at, f"the namespace is {shown(value)}: {wanted}")
        return "?"

    def _add_entry(self, namespace: str, value: object, at: Location) -> None:
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        name, kind = given.get("name"), given.get("kind")
        id = f"{namespace}:{name}" if isinstance(name, str) and name else ""
        at = at._replace(entry=id)
        if id and not NAME.fullmatch(str(name)):
            wanted = "write letters, digits and _ . -, a letter first"
            self._note(at.inside("name"), f"the name is {shown(name)}: {wanted}")
        elif id in self._places:
            first = self._places[id]
            where = f"{first.document.name}:{first.line}"
            self._note(at.inside("name"), f"the same id is used at {where}: rename one of them")
            return
        if id:
            self._places[id] = at
        entry = self._read(kind, cast("object", value), at)
        if entry is not None:
            self._entries[id] = entry, at

    def _read(self, kind: object, value: object, at: Location) -> Entry | None:
        if isinstance(value, dict) and kind is not None and kind not in KINDS:
            known = instead(str(kind), KINDS)
            self._note(at.inside("kind"), f"unknown kind {shown(kind)}{known}")
            return None
        # Without a kind the fields that all kinds have are checked.
        kinds: dict[Any, type[Entry]] = {**KINDS}
        wanted = kinds.get(kind, HostEntry)
        return read_struct(wanted, cast("object", value), at, self.mistakes)

    # The plan

    def plan(self) -> EntriesPlan:
        """Return the plan, with all references resolved."""
        for id, (entry, at) in self._entries.items():
            match entry:
                case HostEntry():
                    self._hosts[id] = HostPlan(id, entry.host, entry.lifecycle, at)
                case ProcessEntry():
                    self._define(id, entry, at)
                case ServiceEntry():
                    pass
        for id, (entry, at) in self._entries.items():
            match entry:
                case ProcessEntry() if entry.lifecycle.auto_start:
                    self._serve(id, ServiceEntry(**_as_service(entry)), at)
                case ServiceEntry():
                    self._serve(id, entry, at)
                case _:
                    pass
        needs = self._needs()
        self._find_cycles(needs)
        order = [] if self.mistakes else start_order(needs, self._wanted())
        return EntriesPlan(self._hosts, self._definitions, self._services, needs, order)

    def _wanted(self) -> list[str]:
        """Return what is started automatically, hosts first."""
        hosts = [id for id, host in self._hosts.items() if host.lifecycle.auto_start is not False]
        return hosts + [id for id, each in self._services.items() if each.lifecycle.auto_start]

    def _define(self, id: str, entry: ProcessEntry, at: Location) -> None:
        source = self._source(entry, at)
        for key in ("host", "input"):
            if getattr(entry, key) is not None and getattr(entry.defaults, key) is not None:
                self._note(at.inside(key), f"{key} and defaults.{key} say the same: leave one out")
        host = entry.host or entry.defaults.host
        if host is not None:
            host = self._reference(host, at, "host", self._is_host, "a process.host")
        given = entry.input if entry.input is not None else entry.defaults.input
        if source is not None:
            self._definitions[id] = Definition(id, source, host, given, at)

    def _serve(self, id: str, entry: ServiceEntry, at: Location) -> None:
        self._check_restart(entry, at)
        process = self._reference(entry.process, at, "process", self._is_process, "a process.py")
        defaults = self._definitions.get(process or "")
        host = entry.host
        if host is not None:
            host = self._reference(host, at, "host", self._is_host, "a process.host")
        elif defaults is not None:
            host = defaults.host or self._only_host(at)
        given = entry.input
        if given is None and defaults is not None:
            given = defaults.input
        # Also without a process, a mistake that was noted: what it depends on is checked too.
        self._services[id] = ServicePlan(id, process or "", host, given or (), entry.lifecycle, at)

    def _only_host(self, at: Location) -> str | None:
        """Return the host of a service that names none: the only host, if there is just one."""
        if len(self._hosts) > 1:
            hosts = " or ".join(self._hosts)
            self._note(at, f"it does not say where it runs: write host: {hosts}")
        return next(iter(self._hosts), None)

    def _check_restart(self, entry: ServiceEntry, at: Location) -> None:
        plan = entry.lifecycle.restart
        if plan.max_delay < plan.initial_delay:
            place = at.inside("lifecycle").inside("restart").inside("max_delay")
            self._note(place, "max_delay is shorter than initial_delay: write a longer one")

    # References

    def _needs(self) -> dict[str, list[str]]:
        """Return the dependencies of each host and service."""
        needs: dict[str, list[str]] = {}
        for id, host in self._hosts.items():
            needs[id] = self._depends_on(host)
        for id, service in self._services.items():
            own = [service.host] if service.host is not None else []
            needs[id] = own + self._depends_on(service)
        return needs

    def _depends_on(self, plan: HostPlan | ServicePlan) -> list[str]:
        found: list[str] = []
        for field in ("depends_on", "requires"):
            at = plan.at.inside("lifecycle").inside(field)
            for index, name in enumerate(getattr(plan.lifecycle, field)):
                what = "a host or a service, or a process.py with auto_start"
                id = self._reference(name, at, index, self._can_start, what)
                found += [id] if id is not None else []
        return found

    def _find_cycles(self, needs: dict[str, list[str]]) -> None:
        for cycle in find_cycles(needs):
            at = self._places[cycle.members[0]]
            self._note(at, f"dependency cycle: {cycle}: remove one depends_on")

    def _reference(
        self, name: str, at: Location, key: str | int, fits: Any, what: str
    ) -> str | None:
        """Return the id that a reference means; None, with a mistake noted, if there is none."""
        namespace = at.entry.partition(":")[0]
        id = name if ":" in name else f"{namespace}:{name}"
        if id in self._places:
            if id in self._entries and not fits(id):
                self._note(at.inside(key), f"{id} is not {what}: name one")
                return None
            return id  # its own mistakes are noted there
        self._note(
            at.inside(key), f"there is no entry {id}{instead(id, filter(fits, self._places))}"
        )
        return None

    def _is_host(self, id: str) -> bool:
        return isinstance(self._entry(id), HostEntry)

    def _is_process(self, id: str) -> bool:
        return isinstance(self._entry(id), ProcessEntry)

    def _can_start(self, id: str) -> bool:
        entry = self._entry(id)
        if isinstance(entry, ProcessEntry):
            return entry.lifecycle.auto_start is True
        return entry is not None

    def _entry(self, id: str) -> Entry | None:
        return self._entries[id][0] if id in self._entries else None

    def _note(self, at: Location, text: str) -> None:
        self.mistakes.append(at.mistake(text))

    # Sources

    def _source(self, entry: ProcessEntry, at: Location) -> Source | None:
        given = entry.source
        if given is not None and entry.module is not None:
            self._note(at.inside("module"), "source and module: leave one out")
            return None
        if entry.module is not None:
            given = f"module:{entry.module}"
        if callable(given):
            return cast("Function", given)
        source = _parsed(given, entry.method, at.document.folder)
        if isinstance(source, str):
            self._note(at.inside("source"), source)
            return None
        return source


def _as_service(entry: ProcessEntry) -> dict[str, Any]:
    """Return an `auto_start` process as a service."""
    return {
        "name": entry.name,
        "kind": entry.kind,
        "process": entry.name,
        "lifecycle": entry.lifecycle,
    }


_WANTED = "write source: file://x.py or source: module:package.module"


def _parsed(given: object, method: str, folder: Path) -> Source | str:
    """Return the source that a text describes, or what is wrong with it."""
    if given is None:
        return f"source is missing: {_WANTED}"
    scheme, _, rest = given.partition(":") if isinstance(given, str) else ("", "", "")
    if scheme == "module":
        is_name = all(part.isidentifier() for part in rest.split("."))
        wrong = f"{rest!r} is not the name of a module: write one such as package.module"
        return ModuleSource(rest, method) if is_name else wrong
    if scheme != "file" or not rest.startswith("//"):
        return f"source is {shown(given)}: {_WANTED}"
    path = folder / rest.removeprefix("//")
    if path.suffix != ".py":
        return f"{path.name} is not a Python file: write one that ends in .py"
    return FileSource(path, method) if path.is_file() else f"there is no file {path}"


# The start order of things that depend on each other; pure.

Needs = Mapping[str, Sequence[str]]


def start_order(needs: Needs, wanted: Iterable[str]) -> list[str]:
    """Return what is wanted and all its dependencies, each after its own dependencies.

    Otherwise the given order is kept, so that the entries of a file start in file order.

    Args:
        needs: The dependencies of each thing; things that are not in here are left out.
        wanted: What to start.

    Raises:
        Cycle: There is a dependency cycle.
    """
    done: dict[str, None] = {}
    for each in wanted:
        _visit(each, needs, done)
    return list(done)


class Cycle(Exception):
    """There is a dependency cycle; `members` is one such cycle."""

    def __init__(self, members: Sequence[str]) -> None:
        super().__init__(" → ".join([*members, members[0]]))
        self.members = tuple(members)


def find_cycles(needs: Needs) -> list[Cycle]:
    """Return dependency cycles, so that everything in any cycle is in one of these."""
    left = dict(needs)
    found: list[Cycle] = []
    while left:
        try:
            start_order(left, left)
        except Cycle as cycle:
            found.append(cycle)
            for member in cycle.members:
                del left[member]
        else:
            break
    return found


def _visit(start: str, needs: Needs, done: dict[str, None]) -> None:
    """Walk down the dependencies without recursion, since a chain of them may be long."""
    if start in done or start not in needs:
        return
    path: dict[str, None] = {start: None}  # those on the way down
    branches = [iter(needs[start])]
    while branches:
        for each in branches[-1]:
            if each in path:
                ring = list(path)
                raise Cycle(ring[ring.index(each) :])
            if each in needs and each not in done:
                path[each] = None
                branches.append(iter(needs[each]))
                break
        else:
            branches.pop()
            done[path.popitem()[0]] = None


# Loading the functions of a plan: the only place that runs the code of entries.


def load_functions(plan: EntriesPlan) -> dict[str, Function]:
    """Return the functions of all definitions, by their ids.

    Raises:
        EntriesError: Some cannot be loaded, or do not accept the input of their service.
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
    """Return the function of an entry.

    Args:
        id: The id of the entry.
        source: Where the function is defined.
        names: The files that were loaded before, by the names of their modules.

    Raises:
        SpawnError: It has no `async def` function of that name.
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
    """Return the module of a source.

    A file gets a name with its namespace, so that reports and trees show what was declared;
    but without dots, since an import of a dotted name looks for a package.
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
    """Return a file as a module; like an import, it runs the file only once."""
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
    """Return the line at which the import of a file failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f" ({each.filename}:{each.lineno})" for each in frames if each.name == "<module>"]
    return lines[-1] if lines else ""


def _problem_of_input(function: Function, given: tuple[Any, ...]) -> str | None:
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        signature = f"{function.__name__}{inspect.signature(function)}"
        return f"{signature} does not accept this input: {error}"
    return None
