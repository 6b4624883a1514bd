"""The verbs: what `perdure.process` exports and user code calls.

Starting: `spawn` and its family. Messages: `send`, `inbox`, `listen`, `call`. Relations:
names, options, monitors, links. Ending: `cancel`, `kill`, `exit`.
Only waiting is `async`. Every other verb changes its bookkeeping atomically, so it is a plain
function and cannot be interrupted half-way.
"""

import asyncio
import contextlib
import types
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, NoReturn, Self

from perdure.base.duration import Duration, seconds
from perdure.base.errors import CallExit, Killed, NoProcess, ProcError, ProcessExit, SpawnError
from perdure.base.pid import MonitorRef, Pid
from perdure.base.settings import Overflow, Settings
from perdure.process.channel import Channel
from perdure.process.event import Event, ExitResult, Message
from perdure.process.exit_reason import EXIT_WITHOUT_VALUE, ExitNow, Upgrade
from perdure.process.introspect import Info, info_of
from perdure.process.lifecycle import PLAIN, check_function, find_spawn_id, spawn_process
from perdure.process.lifecycle import cancel as cancel_process
from perdure.process.lifecycle import kill as kill_process
from perdure.process.names import check_name
from perdure.process.process import Function, MailboxBound, Process, SpawnOptions, current
from perdure.process.relations import Destination, holder_of, resolve
from perdure.process.relations import link as add_link
from perdure.process.relations import monitor as start_monitor
from perdure.process.relations import register as register_name
from perdure.process.relations import unlink as remove_link
from perdure.process.relations import unmonitor as stop_monitor
from perdure.process.relations import unregister as unregister_name
from perdure.process.request import Request
from perdure.process.runtime import AdoptedProcess
from perdure.process.waiter import current_waiter, own_process

Values = Mapping[str, Any]


# Starting


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
        name: A name that it has from its start.
        context: Values that it and its descendants see by `process.context()`.

    Raises:
        SpawnError: It cannot be started; nothing was created.
        NameTaken: Another process has the name; nothing was created.
    """
    options = PLAIN if host is name is context is None else SpawnOptions(host, name, context)
    parent = current("spawn")
    return spawn_process(parent.runtime, parent, function, args, options).pid


def spawn_monitored(
    function: Function | str,
    *args: Any,
    host: str | None = None,
    name: str | None = None,
    context: Values | None = None,
) -> Pid:
    """Start a process and monitor it, atomically: its end always sends an EXIT event."""
    return _spawn(
        "spawn_monitored", function, args, SpawnOptions(host, name, context, monitor=True)
    )


def spawn_linked(
    function: Function | str,
    *args: Any,
    host: str | None = None,
    name: str | None = None,
    context: Values | None = None,
) -> Pid:
    """Start a process and link to it atomically: if one of the two fails, so does the other."""
    return _spawn("spawn_linked", function, args, SpawnOptions(host, name, context, link=True))


def spawn_linked_monitored(
    function: Function | str,
    *args: Any,
    host: str | None = None,
    name: str | None = None,
    context: Values | None = None,
) -> Pid:
    """Start a process, link to it and monitor it, atomically."""
    options = SpawnOptions(host, name, context, link=True, monitor=True)
    return _spawn("spawn_linked_monitored", function, args, options)


def _spawn(
    verb: str, function: Function | str, args: tuple[Any, ...], options: SpawnOptions
) -> Pid:
    parent = current(verb)
    return spawn_process(parent.runtime, parent, function, args, options).pid


def spawner(
    host: str | None = None, name: str | None = None, context: Values | None = None
) -> "Spawner":
    """Return a builder that spawns with these options."""
    if name is not None:
        check_name(name)
    return Spawner(SpawnOptions(host, name, None if context is None else dict(context)))


@dataclass(frozen=True, slots=True)
class Spawner:
    """Spawns with options; each `with_…` returns a new builder and leaves the old one as it was."""

    _options: SpawnOptions = field(default_factory=SpawnOptions)
    _messages: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def with_context(self, values: Values) -> Self:
        """Add values that the process and its descendants see."""
        merged = {**(self._options.values or {}), **values}
        return replace(self, _options=self._options._replace(values=merged))

    def with_name(self, name: str) -> Self:
        """Spawn or signal: if another process holds the name, send to it and start nothing."""
        check_name(name)
        return replace(self, _options=self._options._replace(name=name))

    def with_host(self, host: str) -> Self:
        """Run on this host."""
        return replace(self, _options=self._options._replace(host=host))

    def with_message(self, topic: str, *payload: Any) -> Self:
        """Add a message that is delivered right after the start."""
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

    def _spawn(self, function: Function | str, args: tuple[Any, ...], options: SpawnOptions) -> Pid:
        parent = current("spawn")
        runtime = parent.runtime
        holder = runtime.names.get(options.name or "")
        target = None if holder is None else resolve(holder.pid, runtime)
        if target is None:
            self._check_room(runtime.settings)
            target = spawn_process(runtime, parent, function, args, options)
        else:
            _relate(parent, target, options)
        for topic, payload in self._messages:
            value = payload[0] if len(payload) == 1 else list(payload) if payload else None
            target.deliver(Message(topic, value, parent.pid))
        return target.pid

    def _check_room(self, settings: Settings) -> None:
        """Raise before the start for messages that the new mailbox would reject."""
        limit, count = settings.mailbox_limit, len(self._messages)
        if limit is not None and count > limit and settings.overflow is Overflow.REJECT:
            raise SpawnError(f"{count} messages for a new process: its mailbox takes only {limit}")


def _relate(parent: Process, target: Process, options: SpawnOptions) -> None:
    if options.link:
        add_link(parent, target)
    if options.monitor:
        start_monitor(parent, target.pid)


async def run_process(function: Callable[..., Any] | str, *args: Any) -> Any:
    """Run a function as a process of its own, wait for its end, and return its value.

    If the caller is interrupted meanwhile, the process continues.

    Raises:
        CallExit: It was killed, shut down, or died by a link.
        Exception: Whatever it raised.
    """
    parent = current("run_process")
    child = spawn_process(parent.runtime, parent, function, args, SpawnOptions())
    await wait_exit(child)
    outcome = child.outcome
    assert outcome is not None
    if isinstance(outcome.error, ProcessExit):
        raise CallExit(outcome.error, f"process {child.pid}")
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


@types.coroutine
def wait_exit(process: Process) -> Generator[Any, None, None]:
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
    """Continue as the same process with other code: same pid, names, links, monitors, mailbox.

    Does not return. Tasks that the old code started are stopped first.
    """
    process = current("upgrade")
    if isinstance(process, AdoptedProcess) or not process.runs_now():
        raise ProcError("upgrade is called by the process itself, not by a task inside it")
    if process.has_merged_channels():  # other code would not understand what it receives
        raise ProcError("a server cannot be upgraded: stop it and start another one")
    if isinstance(function, str):
        entry = find_spawn_id(process.runtime.spawn_ids, function)
        function, args = entry.function, args or entry.args
    check_function(function)
    raise Upgrade(function, args)


# Messages

# Topics that passed the check: most programs have a few, and a lookup is cheaper than the check.
_MAX_KNOWN_TOPICS = 1024
_KNOWN_TOPICS: set[str] = set()


def send(dest: Destination, topic: str, payload: Any = None, /, *more: Any) -> bool:
    """Send a message; never waits.

    Without a payload the receiver gets None, with several a list of them.
    On the same loop the payload is not copied.

    Returns:
        False if the pid is dead, which is an ordinary race.

    Raises:
        NotRegistered: No process has that name.
        ValueError: The topic is empty or begins with "@", which is reserved.
        MailboxFull: The receiver has a mailbox limit and the overflow rule "reject".
    """
    try:
        if topic not in _KNOWN_TOPICS:
            check_topic(topic)
    except TypeError:
        raise TypeError(f"a topic is text, not {topic!r}") from None
    sender = own_process(None)
    if sender is None:
        origin = None
    else:
        origin = sender.pid
        if origin.target is None:
            raise NoProcess(origin, "send")
    target: Process | None = dest.target if type(dest) is Pid else resolve_destination(dest, "send")
    if target is None:
        return False
    if more:
        payload = [payload, *more]
    return target.deliver(Message(topic, payload, origin))


def inbox() -> Channel[Message]:
    """Return the channel of all messages whose topic has no listener."""
    return current("inbox").inbox()


def events() -> Channel[Event]:
    """Return the channel of `Exit`, `LinkDown` and `Cancel` events."""
    return current("events").events()


def listen(topic: str, *, message: bool = False) -> Channel[Any]:
    """Return the channel of one topic: payloads, or whole messages with `message=True`."""
    check_topic(topic)
    return current("listen").listen(topic, whole_messages=message)


def unlisten(channel: Channel[Any]) -> None:
    """Close the channel of a topic; later messages go to the inbox again."""
    current("unlisten").unlisten(channel)


async def call(dest: Destination, request: Any, timeout: Duration = 5.0) -> Any:
    """Send a request to a process and wait for its reply.

    The other process gets a `Request` from `requests()` and calls its `reply`.

    Raises:
        CallTimeout: No reply came in time; a late one is dropped.
        CallExit: The process died, or was dead; `reason` says why.
        NotRegistered: No process has that name.
    """
    target: Process | None = dest.target if type(dest) is Pid else resolve_destination(dest, "call")
    pid = dest if type(dest) is Pid else target.pid  # pyright: ignore[reportOptionalMemberAccess]
    return await ask(target, pid, request, timeout)


@types.coroutine
def ask(
    server: Process | None, pid: Pid, body: object, timeout: Duration = 5.0
) -> Generator[Any, None, Any]:
    """Send a request to a server (None if it is dead) and wait for the answer."""
    limit = seconds(timeout)
    caller = current("call")
    if server is None:
        raise CallExit(NoProcess(pid), f"the call to {pid}")
    if server is caller:
        raise CallExit(ProcError("a process cannot call itself"), f"the call to {pid}")
    if server.loop is not caller.loop and (server := resolve(pid, caller.runtime)) is None:
        raise CallExit(NoProcess(pid), f"the call to {pid}")
    waiter = current_waiter()
    open_requests = server.get_relations().get_open_requests()
    request: Request[Any] = Request(server.pid, body, caller.pid, waiter, open_requests)
    open_requests[request] = None
    server.add_request(request)
    if limit is not None:
        caller.runtime.deadlines.add(limit, request)
    try:
        while not request.done:
            yield waiter.pause()
    finally:
        request.withdraw()
    return request.answer()


def requests() -> Channel[Request[Any]]:
    """Return the channel of requests that others made by `call`."""
    return current("requests").requests()


def resolve_destination(dest: Destination, verb: str) -> Process | None:
    """Return the process of a pid or a name; None if the pid is dead."""
    runtime = current(verb).runtime
    if type(dest) is Pid:
        return resolve(dest, runtime)
    return resolve(holder_of(runtime.names, dest).pid, runtime)


def resolve_alive(dest: Destination, verb: str) -> Process:
    """Return the living process of a pid or a name; raise if it is dead."""
    target = resolve_destination(dest, verb)
    if target is None:
        assert isinstance(dest, Pid)
        raise NoProcess(dest, verb)
    return target


def check_topic(topic: object) -> None:
    """Raise unless this can be a topic."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is text, not {topic!r}")
    if not topic:
        raise ValueError("a topic must not be empty")
    if topic.startswith("@"):
        raise ValueError(f"topic {topic!r}: topics that begin with '@' are reserved")
    if len(_KNOWN_TOPICS) < _MAX_KNOWN_TOPICS:
        _KNOWN_TOPICS.add(topic)


# Looking at processes


def self_pid() -> Pid:
    """Return the pid of the running process."""
    return current("self_pid").pid


def context() -> Mapping[str, Any]:
    """Return the values that this process inherited or was spawned with."""
    return MappingProxyType(dict(current("context").values))


def alive(dest: Destination) -> bool:
    """Whether a process is alive; False already when its EXIT is received."""
    if isinstance(dest, Pid):
        return dest.target is not None
    return whereis(dest) is not None


def info(dest: Destination) -> Info:
    """Return a snapshot of a process.

    Raises:
        NoProcess: It is dead.
    """
    return info_of(resolve_alive(dest, "look at it"))


def processes() -> list[Info]:
    """Return a snapshot of every process of this loop, oldest first."""
    return [info_of(process) for process in current("processes").runtime.processes.values()]


# Names


def register(name: str, pid: Pid | None = None) -> None:
    """Give a process, by default this one, a name; it may have several.

    Raises:
        NameTaken: Another process has it.
        NoProcess: The process is dead.
    """
    me = current("register")
    register_name(me.runtime.names, name, me if pid is None else resolve_alive(pid, "register"))


def unregister(name: str) -> bool:
    """Free a name; return whether a process held it."""
    return unregister_name(current("unregister").runtime.names, name)


def whereis(name: str) -> Pid | None:
    """Return the process that holds a name; None if there is none."""
    check_name(name)
    holder = current("whereis").runtime.names.get(name)
    return holder.pid if holder is not None else None


def pid_of(name: str) -> Pid:
    """Return the process that holds a name.

    Raises:
        NotRegistered: Nobody does.
    """
    return holder_of(current("pid_of").runtime.names, name).pid


@contextlib.contextmanager
def registered(name: str) -> Generator[None, None, None]:
    """Hold a name inside the `with` block."""
    register(name)
    try:
        yield
    finally:
        if whereis(name) is self_pid():
            unregister(name)


# Options


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options of a process.

    Attributes:
        trap_links: Get a `LinkDown` event instead of dying with a linked process.
        mailbox_limit: How many messages may wait in one channel; None = no limit.
        overflow: What happens to a message beyond the limit.
    """

    trap_links: bool = False
    mailbox_limit: int | None = None
    overflow: Overflow = Overflow.REJECT


def get_options() -> ProcessOptions:
    """Return the options of this process."""
    me = current("get_options")
    return ProcessOptions(me.trap_links, me.bound.limit, me.bound.overflow)


def set_options(**options: Any) -> None:
    """Change options of this process: all that are given, or none if one is wrong.

    Raises:
        ValueError: An option is unknown, or its value is out of range.
        TypeError: A value has the wrong type.
    """
    me = current("set_options")
    checked = {name: _check_option(name, value) for name, value in options.items()}
    me.trap_links = checked.get("trap_links", me.trap_links)
    limit = checked.get("mailbox_limit", me.bound.limit)
    me.set_bound(MailboxBound(limit, checked.get("overflow", me.bound.overflow)))


def _check_option(name: str, value: Any) -> Any:
    match name:
        case "trap_links":
            if not isinstance(value, bool):
                raise TypeError(f"trap_links is True or False, not {value!r}")
            return value
        case "mailbox_limit":
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise TypeError(f"mailbox_limit is a number or None, not {value!r}")
            if value is not None and value < 1:
                raise ValueError(f"mailbox_limit is at least 1, not {value!r}")
            return value
        case "overflow":
            return Overflow(value)
        case _:
            known = ", ".join(option.name for option in fields(ProcessOptions))
            hint = ": write trap_links" if name == "trap_exit" else ""
            raise ValueError(f"there is no option {name!r}{hint}; the options are {known}")


@contextlib.contextmanager
def trap_links() -> Generator[None, None, None]:
    """Trap links inside the `with` block."""
    before = get_options().trap_links
    set_options(trap_links=True)
    try:
        yield
    finally:
        set_options(trap_links=before)


# Monitors and links


def monitor(dest: Destination) -> MonitorRef:
    """Get one EXIT event when a process ends; at once, with `NoProcess`, if it is dead already.

    Each call is a monitor of its own, with its own event.
    """
    me = current("monitor")
    target = resolve_destination(dest, "monitor")
    return start_monitor(me, target.pid if target is not None else _pid(dest))


def unmonitor(watched: Destination | MonitorRef, *, flush: bool = True) -> None:
    """Stop monitoring: one monitor by its ref, or all of a process.

    With `flush`, an event that is already queued is removed too, so none comes after this.
    """
    me = current("unmonitor")
    if not isinstance(watched, MonitorRef):
        target = resolve_destination(watched, "unmonitor")
        watched = target.pid if target is not None else _pid(watched)
    stop_monitor(me, watched, flush=flush)


@contextlib.contextmanager
def monitored(dest: Destination) -> Generator[MonitorRef, None, None]:
    """Monitor a process inside the `with` block."""
    ref = monitor(dest)
    try:
        yield ref
    finally:
        unmonitor(ref)


def link(dest: Destination) -> None:
    """Link to a process: if one of the two ends abnormally, so does the other.

    Raises:
        NoProcess: It is dead.
    """
    me = current("link")
    add_link(me, resolve_alive(dest, "link to it"))


def unlink(dest: Destination, *, flush: bool = True) -> None:
    """End a link; always succeeds, also if there is none or the process is dead.

    With `flush`, a `LinkDown` that is already queued is removed too.
    """
    me = current("unlink")
    target = resolve_destination(dest, "unlink")
    remove_link(me, target.pid if target is not None else _pid(dest), flush=flush)


# Ends


def cancel(dest: Destination, timeout: Duration = None, reason: object = None) -> None:
    """Ask a process to end: it gets a `Cancel` event, and is killed when the time is up.

    Without a timeout it is only asked. Of several deadlines the earliest counts.

    Raises:
        NoProcess: It is dead.
    """
    me = current("cancel")
    limit = seconds(timeout)
    cancel_process(resolve_alive(dest, "cancel it"), me.pid, limit, reason)


def kill(dest: Destination) -> None:
    """End a process by force: nothing that its code does can change that.

    Its `finally` blocks run, but each wait in them is interrupted again;
    if it still does not end, it is abandoned: counted as dead, and reported.

    Raises:
        NoProcess: It is dead.
    """
    me = current("kill")
    target = resolve_alive(dest, "kill it")
    if target is me and me.runs_now():
        me.outcome = ExitResult(None, Killed())
        raise ExitNow
    kill_process(target)


def exit(reason: BaseException | None = None, dest: Destination | None = None) -> None:  # noqa: A001
    """End this process, or send an exit signal to another one.

    Without `dest` it does not return.
    Another process ends with this reason, unless it traps links: then it gets a `LinkDown`.
    A normal reason (None) to another process is ignored.

    Raises:
        NoProcess: The other process is dead.
        TypeError: The reason is not an exception.
    """
    if reason is not None and not isinstance(reason, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"an exit reason is an exception, or None for normal; not {reason!r}")
    me = current("exit")
    target = me if dest is None else resolve_alive(dest, "signal it")
    if target is not me:
        if reason is not None:
            target.exit_signal(me.pid, reason)
        return
    outcome = EXIT_WITHOUT_VALUE if reason is None else ExitResult(None, reason)
    if me.runs_now():
        me.outcome = me.outcome or outcome
        raise ExitNow
    me.force_exit(outcome)  # from a task inside it
    raise asyncio.CancelledError


def fail(text: str) -> NoReturn:
    """Raise a RuntimeError with this text."""
    raise RuntimeError(text)


def _pid(dest: Destination) -> Pid:
    if not isinstance(dest, Pid):  # a name was resolved before
        raise NoProcess
    return dest
