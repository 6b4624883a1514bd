"""A step in its own OS process: the worker starts, serves and kills it; the function runs there.

Two processes take part. The process of the attempt, in the worker, starts the other one and then
serves it (`call_in_os_process`). The function runs in the other one (`run_step`), with the same
context as everywhere; its port (`ProcessPort`) sends what must be durable to the first one as a
request. The `StepServer` carries it out there, fenced by the lease, and answers when it is durable.

They end together: killing the process of the attempt kills the other one, and if the OS process
crashes, the attempt fails with `StepCrashed`. The timeout of the step starts when the function
does, since the step may have to wait for a free OS process first.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, reduce
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import decode
from perdure.base.errors import DefinitionError, Drift, HostDown, SpawnError, StepCrashed
from perdure.base.pid import Pid
from perdure.base.retry import pause
from perdure.engine.journal.run import Run
from perdure.engine.journal.step_exit import ExitAtCheckpoint, StepExit
from perdure.engine.people.ask import Approved, NotApproved
from perdure.engine.steps.effects import (
    BegunEffect,
    CallFault,
    EffectOptions,
    EffectRequest,
    ask_receiver,
)
from perdure.engine.steps.step_context import (
    ProgressReport,
    StepPort,
    StepProgress,
    UserQuestion,
    context_for,
)
from perdure.engine.steps.thread_step import call_in_step_thread
from perdure.engine.worker_port import StepHost, WorkerPort
from perdure.engine.working_on import WorkingOn, working_on
from perdure.jobs.budget import Amount, ModelUsage
from perdure.jobs.definition import Step, is_step_class, scope, step_of, step_of_object
from perdure.jobs.effect import Effect, PackedResult, Place, QueryAnswer
from perdure.jobs.failure import Failure, Raises, failure_of
from perdure.jobs.items import ItemVerdict
from perdure.jobs.model import JournalEntry
from perdure.jobs.parameters import Partial
from perdure.jobs.redaction import plain as without_types
from perdure.process.api import call, send
from perdure.process.channel import Channel, select
from perdure.process.event import Cancel, Exit, ExitResult
from perdure.process.hosts.host import ProcessHost
from perdure.process.hosts.pickling import IMPORT_FALLBACKS, import_file
from perdure.process.lifecycle import kill, spawn_process, stop_gracefully
from perdure.process.process import Process, SpawnOptions, current
from perdure.process.relations import monitor
from perdure.process.request import Request

# How often a step that waits for a free OS process reports progress.
_PROGRESS_EVERY = 0.5

# How long pieces of output are collected before they are sent.
_EMIT_EVERY = 0.02

# How long to wait for an OS process that is still ending.
_LOOK_AGAIN = 0.02

# A step that repeatedly kills its OS process must not end the host for other steps.
_MAX_RESTARTS, _MAX_SECONDS = 1000, 60


class StepToRun(Struct, frozen=True, kw_only=True):
    """What the other OS process needs: the function, its arguments, and whose attempt it is."""

    module: str
    file: str | None
    name: str
    input: bytes
    progress: StepProgress


class StepReturned(Struct, frozen=True):
    """The function returned; with a checkpoint, it is not done yet."""

    output: bytes
    checkpoint: Any = None


class StepRaised(Struct, frozen=True):
    """The function raised, perhaps at an item, which was judged there.

    `outcome` is an exception that the step declares in `raises`, as a packed `Failure`.
    """

    error: BaseException
    item: tuple[ItemVerdict, bytes] | None
    outcome: bytes | None = None


class StepLeft(Struct, frozen=True):
    """The function exited early: at a checkpoint, or because the server said so."""


# In the worker: start, serve and end it


async def keep_host(node: WorkerPort) -> None:
    """Own the OS processes for steps, from the first step that needs one; runs for ever."""
    steps = node.step_host
    await steps.wanted.wait()
    host = ProcessHost(
        steps.name,
        kind="os",
        workers=steps.workers,
        dedicated=True,
        kill_after=node.settings.cancel_grace,
        max_restarts=_MAX_RESTARTS,
        max_seconds=_MAX_SECONDS,
    )
    async with host:
        me = current("the host of steps")
        watched = monitor(me, host.pid)
        steps.ready.set()
        try:
            while True:
                match await me.events().receive():
                    case Cancel():
                        return
                    case Exit(ref=ref, result=result) if ref is watched:
                        raise result.error or RuntimeError("the host of steps has ended")
                    case _:
                        pass
        finally:
            steps.ready.clear()


class TimedStep(Protocol):
    """The part of a step that controls its timeout."""

    entry: JournalEntry

    @property
    def run(self) -> Run: ...
    @property
    def step(self) -> Step[..., Any]: ...

    def packed_arguments(self) -> bytes:
        """Return the arguments that the function gets."""
        ...

    def arm(self) -> None:
        """Start the timeout of the attempt."""
        ...

    def disarm(self) -> None:
        """Stop the timeout of the attempt."""
        ...


class ServedAttempt(StepPort, Protocol):
    """The attempt whose function runs in the other process; implemented by `Attempt`."""

    exit: StepExit | None  # the first that was raised
    item_verdict: tuple[ItemVerdict, bytes] | None  # of the other process

    def is_alive(self) -> None:
        """Count as alive, although the function does not run yet."""
        ...

    def when_unlocked(
        self, request: EffectRequest, options: EffectOptions
    ) -> "asyncio.Future[None] | None":
        """Return a future that is done when `effect_begin` need not wait for another step."""
        ...


async def call_in_os_process(
    operation: TimedStep, attempt: ServedAttempt, progress: StepProgress
) -> Any:
    """Run a step in its own OS process; its timeout starts when the function does."""
    steps, grace = operation.run.node.step_host, operation.run.node.settings.cancel_grace
    me = current("a step")
    events, requests, signs, output = (
        me.events(),
        me.requests(),
        me.listen("progress", whole_messages=False),
        me.listen("output", whole_messages=False),
    )
    operation.disarm()
    steps.wanted.set()
    await _with_progress(attempt, steps.ready.wait)
    await _with_progress(attempt, steps.places.acquire)
    server = StepServer(operation.run, attempt, partial(_put_again, me))
    other = await _start(steps, me, _to_run(operation, progress))
    while True:
        news: Any = (await select(requests, events, signs, output)).value
        await _emit_all(attempt, news, output)
        match news:
            case Request():
                await server.answer(cast("Request[Any]", news))
            case Exit(sender=sender, result=result) if sender is other.pid:
                if attempt.exit is not None:
                    raise attempt.exit
                return _outcome(operation, attempt, result)
            case Cancel():
                stop_gracefully(other, grace)
            case "begun":
                operation.arm()
                attempt.is_alive()
            case ProgressReport():
                attempt.report(news)
            case _:
                attempt.heartbeat()


async def _emit_all(attempt: ServedAttempt, news: object, output: Channel[Any]) -> None:
    """Emit what the step has emitted; all of it, before a request or an end that came after it."""
    emitted = [news] if isinstance(news, Emitted) else []
    while isinstance(news, Request | Exit) and len(output):
        emitted.append(await output.receive())
    for each in emitted:
        for topic, data in each.pieces:
            attempt.emit(topic, data)


def _put_again(me: Process, request: Request[Any]) -> None:
    """Put a request back, to be answered after the other ones."""
    if not me.done():
        send(me.pid, "progress", request)


async def _with_progress(attempt: ServedAttempt, wait: Callable[[], Awaitable[object]]) -> None:
    """Wait while reporting progress: a step that waits for its turn is not stuck."""
    while True:
        attempt.is_alive()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROGRESS_EVERY):
                await wait()
                return


async def _start(steps: StepHost, me: Process, step: StepToRun) -> Process:
    """Start the other process, linked to ours: killing this one kills that one."""
    options = SpawnOptions(host=steps.name, monitor=True)
    try:
        while True:
            try:
                other = spawn_process(me.runtime, me, run_step, (me.pid, step), options)
                break
            except SpawnError:  # the previous one is still ending
                await pause(_LOOK_AGAIN)
    except BaseException:
        steps.places.release()
        raise
    other.at_exit(steps.places.release)
    me.at_exit(lambda: None if other.done() else kill(other, "the step has ended"))
    return other


def _to_run(operation: TimedStep, progress: StepProgress) -> StepToRun:
    function = operation.step.fn
    module = function.__module__
    return StepToRun(
        module=module,
        file=getattr(sys.modules.get(module), "__file__", None),
        name=function.__qualname__,
        input=operation.packed_arguments(),
        progress=progress,
    )


def _outcome(operation: TimedStep, attempt: ServedAttempt, result: ExitResult) -> Any:
    """Return what the function returned, or raise what it raised."""
    match result.value:
        case StepReturned(output=output, checkpoint=None):
            return operation.step.result.decode(output)
        case StepReturned(output=output, checkpoint=checkpoint):
            return Partial(operation.step.result.decode(output), decode(checkpoint, Any))
        case StepLeft():
            raise ExitAtCheckpoint
        case StepRaised(error=error, item=item, outcome=outcome):
            attempt.item_verdict = item
            declared = operation.step.raises
            raised = None if outcome is None else Failure.unpack(outcome).raised(declared)
            raise raised or error
        case _:
            why = result.error.cause if isinstance(result.error, HostDown) else result.error
            raise StepCrashed(f"the OS process of step {operation.entry.id} ended: {why}")


# Between the two: requests and answers


class Emitted(Struct, frozen=True):
    """Pieces of output, in order, each with its topic."""

    pieces: list[tuple[str, bytes]]


class EffectToBegin(Struct, frozen=True):
    """An effect that the step wants to begin; `answer` is the receiver's answer to a query."""

    request: EffectRequest
    options: dict[str, Any]
    can_query: bool
    answer: QueryAnswer | None = None


class QueryFirst(Struct, frozen=True):
    """Query the receiver about this key, then begin again with its answer."""

    key: str


class StepRef(Struct, frozen=True):
    """A step, by the module and name of its function."""

    module: str
    name: str


class ServerDone(Struct, frozen=True):
    """It is done."""

    value: Any = None


class ServerRaised(Struct, frozen=True):
    """It cannot be done."""

    error: Exception


class ServerExit(Struct, frozen=True):
    """The step must exit; the attempt knows why."""


class ExitByServer(StepExit):
    """Leaves a step in another OS process; the attempt knows why."""


class _QueryFirst(Exception):
    """Only the receiver knows, and only the step can query it."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class StepServer:
    """Carries out, for one attempt, what its function requests from another OS process."""

    def __init__(
        self, run: Run, attempt: ServedAttempt, put_again: Callable[[Request[Any]], object]
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._put_again = put_again  # lets a request be answered later
        self._verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "save_checkpoint": attempt.save_checkpoint,
            "effect_begin": self._effect_begin,
            "effect_done": self._effect_done,
            "effect_failed": attempt.effect_failed,
            "record_effect": attempt.record_effect,
            "was_effect_recorded": attempt.was_effect_recorded,
            "ask_person": attempt.ask_person,
            "reserve": attempt.reserve,
            "settle": attempt.settle,
        }

    async def answer(self, request: Request[Any]) -> None:
        """Carry out a request of the step, and answer it.

        A request that must wait for another step is deferred: this one may have to end something
        first.
        """
        verb, *args = request.body
        if verb == "effect_begin" and (unlocked := self._when_unlocked(*args)) is not None:
            unlocked.add_done_callback(lambda _: self._put_again(request))
            return
        try:
            reply: object = ServerDone(await self._verbs[verb](*args))
        except StepExit:
            reply = ServerExit()
        except Exception as error:  # noqa: BLE001 - it is raised there
            reply = ServerRaised(error)
        request.reply(reply)

    def _when_unlocked(self, wanted: EffectToBegin) -> "asyncio.Future[None] | None":
        options = cast("EffectOptions", wanted.options)
        return self._attempt.when_unlocked(wanted.request, options)

    async def _effect_begin(self, wanted: EffectToBegin) -> BegunEffect | QueryFirst:
        options = cast("EffectOptions", dict(wanted.options))
        self._attempt.effect_asked(wanted.request)
        if wanted.can_query:
            options["query"] = partial(_answer_or_query, wanted.answer)
        if wanted.options.get("undo") is not None:
            ref, given = wanted.options["undo"]
            options["undo"] = (_referred(ref), given)
        try:
            return await self._attempt.effect_begin(wanted.request, options)
        except _QueryFirst as query:
            return QueryFirst(query.key)

    async def _effect_done(self, begun: BegunEffect, packed: PackedResult) -> Effect:
        line = await self._attempt.effect_done(begun, packed)
        await self._run.flush()  # the other OS process may crash: the result must be durable now
        return line


def _answer_or_query(answer: QueryAnswer | None, key: str) -> QueryAnswer:
    if answer is None:
        raise _QueryFirst(key)
    return answer


def _referred(ref: StepRef) -> Step[..., Any]:
    found = find_at(ref.module, ref.name)
    if not isinstance(found, Step):
        raise DefinitionError(f"there is no step {ref.name} in module {ref.module}")
    return cast("Step[..., Any]", found)


# In the other OS process: find the function and call it


async def run_step(server: Pid, step_to_run: StepToRun) -> StepReturned | StepRaised | StepLeft:
    """The process of an attempt in another OS process."""
    port = ProcessPort(server)
    try:
        return await _run_step(port, step_to_run)
    finally:
        port.send_emitted()


async def _run_step(
    port: "ProcessPort", step_to_run: StepToRun
) -> StepReturned | StepRaised | StepLeft:
    progress, raises = step_to_run.progress, cast("Raises", ())
    scope.set(progress.step_id)
    given = progress.job_id, "", progress.tenant, "", progress.step_id, progress.attempt
    working_on.set(WorkingOn(*given))
    try:
        step = find_step(step_to_run)
        raises = step.raises
        args, kwargs = step.parameters.unpack(step_to_run.input)
        port.begin()
        if step.is_async:
            value = await step.invoke(context_for(step, port, progress), args, kwargs)
        else:  # in a thread, so that this process still answers while it works
            value = await _call_in_thread(step, (port, progress), args, kwargs)
        if type(value) is Partial:
            partial = cast("Partial[Any]", value)
            so_far = step.result.encode(partial.output, progress.limits)
            return StepReturned(so_far, progress.encode_checkpoint(partial.checkpoint))
        return StepReturned(step.result.encode(value, progress.limits))
    except StepExit:
        return StepLeft()
    except Exception as error:  # noqa: BLE001 - the process that asked for the step gets it
        failure = failure_of(error, progress.attempt, raises=raises, limits=progress.limits)
        outcome = failure.pack() if failure.is_outcome else None
        return StepRaised(error, progress.judge_item(failure), outcome)


async def _call_in_thread(
    step: Step[..., Any],
    context: tuple["ProcessPort", StepProgress],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a sync function; only the end of its OS process, which is its own, surely ends it."""
    try:
        return await call_in_step_thread(step, context, args, kwargs)
    except asyncio.CancelledError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise


class ProcessPort:
    """The port of a context in another OS process: sends requests to the server of the step."""

    blocking = False

    def __init__(self, server: Pid) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.cancelled = asyncio.Event()
        self._emitted: list[tuple[str, bytes]] = []

    def time(self) -> float:
        return self._loop.time()

    def heartbeat(self) -> None:
        send(self._server, "progress")

    def report(self, report: ProgressReport) -> None:
        send(self._server, "progress", report)

    def begin(self) -> None:
        """Say that the function begins."""
        send(self._server, "progress", "begun")

    def emit(self, topic: str, data: bytes) -> None:
        if not self._emitted:
            self._loop.call_later(_EMIT_EVERY, self.send_emitted)
        self._emitted.append((topic, data))

    def send_emitted(self) -> None:
        """Send what was emitted; it arrives before whatever is sent later."""
        if self._emitted:
            emitted, self._emitted = self._emitted, []
            send(self._server, "output", Emitted(emitted))

    async def save_checkpoint(self, data: bytes) -> bool:
        return await self._ask("save_checkpoint", data)

    def effect_asked(self, request: EffectRequest) -> None:
        """Do nothing: the server records it when the effect begins."""

    async def effect_begin(self, request: EffectRequest, options: EffectOptions) -> BegunEffect:
        query = options.get("query")
        wanted = EffectToBegin(request, _without_functions(options), query is not None)
        begun: BegunEffect | QueryFirst = await self._ask("effect_begin", wanted)
        while isinstance(begun, QueryFirst):
            assert query is not None
            wanted = replace(wanted, answer=await ask_receiver(query, begun.key))
            begun = await self._ask("effect_begin", wanted)
        return begun

    async def effect_done(self, begun: BegunEffect, packed: PackedResult) -> Effect:
        return await self._ask("effect_done", begun, packed)

    async def effect_failed(
        self, begun: BegunEffect, fault: CallFault | None, options: EffectOptions
    ) -> None:
        if fault is not None:
            await self._ask("effect_failed", begun, fault, _without_functions(options))

    async def record_effect(
        self, kind: str, key: str, target: str, details: Mapping[str, Any]
    ) -> None:
        await self._ask("record_effect", kind, key, target, without_types(details))

    async def was_effect_recorded(self, kind: str, key: str) -> bool:
        return await self._ask("was_effect_recorded", kind, key)

    async def ask_person(self, place: Place, question: UserQuestion) -> Approved | NotApproved:
        return await self._ask("ask_person", place, question)

    async def reserve(self, place: Place, amount: Amount) -> str:
        return await self._ask("reserve", place, amount)

    async def settle(
        self, reservation: str, actual: Amount, usage: ModelUsage | None = None
    ) -> None:
        await self._ask("settle", reservation, actual, usage)

    async def _ask(self, verb: str, *args: Any) -> Any:
        """Send a request to the server; return its answer.

        Raises:
            ExitByServer: The step must exit.
        """
        self.send_emitted()
        answer = await call(self._server, (verb, *args), timeout=None)
        match answer:
            case ServerRaised(error=error):
                raise error
            case ServerExit():
                raise ExitByServer
            case _:
                return cast("ServerDone", answer).value


def _without_functions(options: EffectOptions) -> dict[str, Any]:
    """Return options that can be sent: steps become references, and the query stays here."""
    plain: dict[str, Any] = {name: each for name, each in options.items() if name != "query"}
    if plain.get("details") is not None:
        plain["details"] = without_types(plain["details"])
    undo = plain.get("undo")
    if undo is not None:
        step, given = cast("Any", undo if isinstance(undo, tuple) else (undo, {}))
        if not isinstance(step, Step):
            raise DefinitionError(f"`undo` is a step that takes the result, not {step!r}")
        function = cast("Step[..., Any]", step).fn
        ref = StepRef(function.__module__, function.__qualname__)
        plain["undo"] = (ref, msgspec.to_builtins(given))
    return plain


def find_step(step: StepToRun) -> Step[..., Any]:
    """Return a step, found by the module and name of its function.

    Raises:
        Drift: There is no such step.
    """
    found = _find(step)
    if found is None and any(load() for load in IMPORT_FALLBACKS):
        found = _find(step)
    if isinstance(found, Step):
        return cast("Step[..., Any]", found)
    if is_step_class(found):
        return step_of_object(cast("type[Any]", found)())
    if callable(found):
        return step_of(found)
    raise Drift(
        f"step {step.progress.step_id} cannot run in another OS process: "
        f"there is no {step.name} in module {step.module}"
    )


def _find(step: StepToRun) -> object:
    if step.module not in sys.modules:
        try:
            importlib.import_module(step.module)
        except ModuleNotFoundError:
            if step.file is None:
                raise
            import_file(step.module, step.file)
    return find_at(step.module, step.name)


def find_at(module: str, name: str) -> object:
    """Return the object with this name in a module; None if there is none."""
    return reduce(_attribute, name.split("."), cast("object", sys.modules.get(module)))


def _attribute(holder: object, name: str) -> object:
    """Return the attribute of this name; but a step itself, since the rest names its function."""
    if isinstance(holder, Step) or is_step_class(holder):
        return cast("object", holder)
    return getattr(holder, name, None)
