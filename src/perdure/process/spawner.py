"""The verbs of starting: spawn and its family."""

import types
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

from perdure.base.errors import CallExit, ProcError, ProcessExit, SpawnError
from perdure.base.pid import Pid
from perdure.base.settings import Overflow, Settings
from perdure.process import signal
from perdure.process.birth import PLAIN, Function, Options, check_function, give_birth
from perdure.process.current import current, current_waiter
from perdure.process.entry import find_entry
from perdure.process.event import Message
from perdure.process.exits import Upgrade
from perdure.process.messaging import check_topic
from perdure.process.names import check_name
from perdure.process.process import Process
from perdure.process.reach import reach
from perdure.process.root import AdoptedProcess

Values = Mapping[str, Any]


def spawn(
    function: Function | str,
    *args: Any,
    host: str | None = None,
    name: str | None = None,
    context: Values | None = None,
) -> Pid:
    """Start a process and return at once; it has not run a line yet.

    Args:
        function: An `async def` function, or the id of a loaded entry.
        *args: Its arguments.
        host: Where it runs; the running loop by default.
        name: A name that it is born with.
        context: Values that it and its descendants see by `process.context()`.

    Raises:
        SpawnError: It cannot be started; nothing was created.
        NameTaken: Another process has the name; nothing was created.
    """
    options = PLAIN if host is name is context is None else Options(host, name, context)
    parent = current("spawn")
    return give_birth(parent.runtime, parent, function, args, options).pid


def spawn_monitored(
    function: Function | str,
    *args: Any,
    host: str | None = None,
    name: str | None = None,
    context: Values | None = None,
) -> Pid:
    """Start a process and monitor it, as one act: its end always gives an EXIT event."""
    return _spawn("spawn_monitored", function, args, Options(host, name, context, monitor=True))


def spawn_linked(
    function: Function | str,
    *args: Any,
    host: str | None = None,
    name: str | None = None,
    context: Values | None = None,
) -> Pid:
    """Start a process and link to it, as one act: if one of the two fails, so does the other."""
    return _spawn("spawn_linked", function, args, Options(host, name, context, link=True))


def spawn_linked_monitored(
    function: Function | str,
    *args: Any,
    host: str | None = None,
    name: str | None = None,
    context: Values | None = None,
) -> Pid:
    """Start a process, link to it and monitor it, as one act."""
    options = Options(host, name, context, link=True, monitor=True)
    return _spawn("spawn_linked_monitored", function, args, options)


def _spawn(verb: str, function: Function | str, args: tuple[Any, ...], options: Options) -> Pid:
    parent = current(verb)
    return give_birth(parent.runtime, parent, function, args, options).pid


def spawner(
    host: str | None = None, name: str | None = None, context: Values | None = None
) -> "Spawner":
    """Give a builder that spawns with these options."""
    if name is not None:
        check_name(name)
    return Spawner(Options(host, name, None if context is None else dict(context)))


@dataclass(frozen=True, slots=True)
class Spawner:
    """Spawns with options; each `with_…` gives a new builder and leaves the old as it was."""

    _options: Options = field(default_factory=Options)
    _messages: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def with_context(self, values: Values) -> Self:
        """Add values that the process and its descendants see."""
        merged = {**(self._options.values or {}), **values}
        return replace(self, _options=self._options._replace(values=merged))

    def with_name(self, name: str) -> Self:
        """Spawn or signal: if the name is held, start nothing and send to its holder."""
        check_name(name)
        return replace(self, _options=self._options._replace(name=name))

    def with_host(self, host: str) -> Self:
        """Run on this host."""
        return replace(self, _options=self._options._replace(host=host))

    def with_message(self, topic: str, *payload: Any) -> Self:
        """Queue a message that is delivered right after birth."""
        check_topic(topic)
        return replace(self, _messages=(*self._messages, (topic, payload)))

    def spawn(self, function: Function | str, *args: Any) -> Pid:
        """Start a process."""
        return self._spawn(function, args, self._options)

    def spawn_monitored(self, function: Function | str, *args: Any) -> Pid:
        """Start a process and monitor it."""
        return self._spawn(function, args, self._options._replace(monitor=True))

    def spawn_linked(self, function: Function | str, *args: Any) -> Pid:
        """Start a process and link to it."""
        return self._spawn(function, args, self._options._replace(link=True))

    def spawn_linked_monitored(self, function: Function | str, *args: Any) -> Pid:
        """Start a process, link to it and monitor it."""
        return self._spawn(function, args, self._options._replace(link=True, monitor=True))

    def _spawn(self, function: Function | str, args: tuple[Any, ...], options: Options) -> Pid:
        parent = current("spawn")
        runtime = parent.runtime
        holder = runtime.names.get(options.name or "")
        target = None if holder is None else reach(holder.pid, runtime)
        if target is None:
            self._check_room(runtime.settings)
            target = give_birth(runtime, parent, function, args, options)
        else:
            _relate(parent, target, options)
        for topic, payload in self._messages:
            value = payload[0] if len(payload) == 1 else list(payload) if payload else None
            target.deliver(Message(topic, value, parent.pid))
        return target.pid

    def _check_room(self, settings: Settings) -> None:
        """Refuse messages that a new mailbox would refuse: then the process is there already."""
        limit, count = settings.mailbox_limit, len(self._messages)
        if limit is not None and count > limit and settings.overflow is Overflow.REJECT:
            raise SpawnError(f"{count} messages at birth: a mailbox here takes only {limit}")


def _relate(parent: Process, target: Process, options: Options) -> None:
    if options.link:
        signal.link(parent, target)
    if options.monitor:
        signal.monitor(parent, target.pid)


async def run_process(function: Callable[..., Any] | str, *args: Any) -> Any:
    """Run a function as a process of its own, wait for its end, and give its value.

    If the caller is interrupted meanwhile, the process goes on.

    Raises:
        CallExit: It was killed, shut down, or died by a link.
        Exception: Whatever it raised.
    """
    parent = current("run_process")
    child = give_birth(parent.runtime, parent, function, args, Options())
    await joined(child)
    outcome = child.outcome
    assert outcome is not None
    if isinstance(outcome.error, ProcessExit):
        raise CallExit(outcome.error, f"process {child.pid}")
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


@types.coroutine
def joined(process: Process) -> Generator[Any, None, None]:
    """Wait until a process is dead."""
    waiter = current_waiter()

    def wake(_: object) -> None:
        waiter.wake()

    process.add_done_callback(wake)
    try:
        while not process.done():
            yield waiter.pause()
    finally:
        process.remove_done_callback(wake)


def upgrade(function: Function | str, *args: Any) -> NoReturn:
    """Go on as the same process with other code: same pid, names, links, monitors, mailbox.

    Does not return. Tasks that the old code started are stopped first.
    """
    process = current("upgrade")
    if isinstance(process, AdoptedProcess) or not process.runs_now():
        raise ProcError("upgrade is called by the process itself, not by a task inside it")
    if process.is_unified():  # other code would not know what all this is that it receives
        raise ProcError(
            "a server cannot be upgraded: stop it and start another, or let its callbacks differ"
        )
    if isinstance(function, str):
        entry = find_entry(process.runtime.entries, function)
        function, args = entry.function, args or entry.args
    check_function(function)
    raise Upgrade(function, args)
