"""The context of a step in another OS process: what must be durable is asked of the desk.

The desk is the process that asked for the step; it writes, fenced, and answers when it is durable.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import PayloadLimits, decode
from perdure.base.errors import DefinitionError, Drift, HostDown, SpawnError, StepCrashed
from perdure.base.pid import Pid
from perdure.base.retry import pause
from perdure.engine.crashpoint import crashpoint
from perdure.engine.journal.verdict import AtSafePoint, Leaving
from perdure.engine.people.spending import SPENDING, Spending
from perdure.engine.steps.effects import (
    RESULT,
    Asked,
    Begun,
    EffectOptions,
    Effects,
    Fault,
    ask_receiver,
    fault_of,
)
from perdure.engine.steps.step_context import StepContext, UserQuestion
from perdure.engine.steps.thread_step import call_away
from perdure.engine.worker_port import StepHost, WorkerPort
from perdure.jobs.budget import Amount
from perdure.jobs.definition import Step, is_step_class, step_of, step_of_object
from perdure.jobs.effect import Effect, PackedResult, Place, QueryAnswer, pack_result, unpack_result
from perdure.jobs.failure import failure_of
from perdure.jobs.items import ItemVerdict
from perdure.jobs.parameters import Partial
from perdure.jobs.redaction import plain as without_types
from perdure.process.api import call, send
from perdure.process.channel import select
from perdure.process.death import kill
from perdure.process.event import Cancel, Exit, ExitResult
from perdure.process.hosts.host import ProcessHost
from perdure.process.hosts.pickling import MISSING, import_file
from perdure.process.process import Process
from perdure.process.request import Request
from perdure.process.signal import monitor, stop_politely
from perdure.process.spawn import Options, give_birth
from perdure.process.waiter import current

if TYPE_CHECKING:
    from perdure.engine.steps.step import StepOperation


# What the desk answers


class Given(Struct, frozen=True):
    """It is done."""

    value: Any = None


class Raised(Struct, frozen=True):
    """It cannot be done."""

    error: Exception


class Leave(Struct, frozen=True):
    """The step cannot go on now; why, the desk knows."""


class AskThere(Struct, frozen=True):
    """Ask the receiver about this key, then begin again with its answer."""

    key: str


class Wish(Struct, frozen=True):
    """An effect that the step wants to begin; `answer` is what the receiver said about it."""

    asked: Asked
    options: dict[str, Any]
    can_query: bool
    answer: QueryAnswer | None = None


class SentAway(Leaving):
    """Leaves a step that cannot go on now."""


class StepAt(Struct, frozen=True):
    """A step, by the place of its function."""

    module: str
    name: str


async def ask_desk(desk: Pid, verb: str, *args: Any) -> Any:
    """Have the desk do something.

    Raises:
        SentAway: The step is to be left.
    """
    answer = await call(desk, (verb, *args), timeout=None)
    match answer:
        case Raised(error=error):
            raise error
        case Leave():
            raise SentAway
        case _:
            return cast("Given", answer).value


class FarContext(StepContext):
    """The context, there."""

    def __init__(self, desk: Pid, operation: Any) -> None:
        super().__init__(operation)
        self._desk = desk

    def spend(self, *, usd: float = 0.0, tokens: int = 0, calls: int = 0) -> Spending:
        return FarSpending(self._desk, self.allot(SPENDING), Amount.of(usd, tokens, calls))

    async def ask_person(self, place: Place, question: UserQuestion) -> bool:
        return await ask_desk(self._desk, "ask_person", place, question)

    @property
    def effects(self) -> Effects:
        if self._effects is None:
            self._effects = FarEffects(self._desk, self._operation, self.allot)
        return self._effects


class FarEffects(Effects):
    """The effects of one attempt, there: called here, and kept by the desk."""

    def __init__(self, desk: Pid, operation: Any, allot: Callable[[str], Place]) -> None:
        self._desk = desk
        self._operation = operation
        self._allot = allot
        self._limits: PayloadLimits = operation.run.node.limits

    def come_by(self, asked: Asked) -> None:
        """Nothing to do: the desk does, when it is told to begin."""

    async def begin(self, asked: Asked, options: EffectOptions) -> Begun:
        query = options.get("query")
        wish = Wish(asked, _plain(options), query is not None)
        told: Begun | AskThere = await ask_desk(self._desk, "begin", wish)
        while isinstance(told, AskThere):
            assert query is not None
            wish = replace(wish, answer=await ask_receiver(query, told.key))
            told = await ask_desk(self._desk, "begin", wish)
        return told

    async def done(self, begun: Begun, value: Any) -> Any:
        crashpoint("after_call")
        packed = pack_result(value, RESULT, self._limits)
        return unpack_result(await ask_desk(self._desk, "done", begun, packed), RESULT)

    def failed(
        self, begun: Begun, error: BaseException, options: EffectOptions
    ) -> Awaitable[None] | None:
        if not isinstance(error, Exception):
            return None
        fault = fault_of(begun, error, options)
        return ask_desk(self._desk, "failed", begun, fault, _plain(options))

    async def record(self, kind: str, key: str, target: str, details: Mapping[str, Any]) -> None:
        await ask_desk(self._desk, "record", kind, key, target, without_types(details))

    async def was_recorded(self, kind: str, key: str) -> bool:
        return await ask_desk(self._desk, "was_recorded", kind, key)


class FarSpending(Spending):
    """An amount that the desk sets aside."""

    def __init__(self, desk: Pid, place: Place, amount: Amount) -> None:
        self._desk = desk
        self._place = place
        self._amount = amount
        self._settled = False

    async def settle(
        self, *, usd: float | None = None, tokens: int | None = None, calls: int | None = None
    ) -> None:
        self._settled = True
        await ask_desk(self._desk, "settle", self._place, usd, tokens, calls)

    async def _reserved(self) -> "FarSpending":
        await ask_desk(self._desk, "spend", self._place, self._amount)
        return self


def _plain(options: EffectOptions) -> dict[str, Any]:
    """Give what can cross: a step is named, and the question stays here."""
    plain: dict[str, Any] = {name: each for name, each in options.items() if name != "query"}
    if plain.get("details") is not None:
        plain["details"] = without_types(plain["details"])
    undo = plain.get("undo")
    if undo is not None:
        step, given = cast("Any", undo if isinstance(undo, tuple) else (undo, {}))
        if not isinstance(step, Step):
            raise DefinitionError(f"`undo` is a step that takes the result, not {step!r}")
        fn = cast("Step[..., Any]", step).fn
        plain["undo"] = (StepAt(fn.__module__, fn.__qualname__), msgspec.to_builtins(given))
    return plain


# A step in another OS process, seen from there: its function is found, and called.
#
# The context is the ordinary one; only what it stands on is made of messages to the process
# that asked for the step.


class Facts(Struct, frozen=True, kw_only=True):
    """What the other process needs to know of a step and its job."""

    module: str
    file: str | None
    name: str
    input: bytes
    job_id: str
    tenant: str
    user: str
    step_id: str
    attempt: int
    checkpoint: bytes | None
    checkpoint_no: int
    limits: PayloadLimits
    stopping: bool


class Finished(Struct, frozen=True):
    """The function returned; with a checkpoint, it is not done yet."""

    output: bytes
    checkpoint: Any = None


class Failed(Struct, frozen=True):
    """The function raised, perhaps at an item, which was judged there."""

    error: BaseException
    item: tuple[ItemVerdict, bytes] | None


class SafePoint(Struct, frozen=True):
    """The function left where it may be left: at a checkpoint, or because the desk said so."""


async def work_far(desk: Pid, facts: Facts) -> Finished | Failed | SafePoint:
    """The process of an attempt in another OS process."""
    context = FarContext(desk, FarOperation(desk, facts))
    context.stopping = facts.stopping
    try:
        step = find_step(facts)
        args, kwargs = step.unpack(facts.input)
        send(desk, "progress", "begun")
        if step.is_async:
            value = await step.fn(context, *args, **kwargs)
        else:  # in a thread, so that this process still answers while it works
            value = await _call_beside(step, context, args, kwargs)
        if type(value) is Partial:
            partial = cast("Partial[Any]", value)
            so_far = step.pack_result(partial.output, facts.limits)
            return Finished(so_far, context.encode_checkpoint(partial.checkpoint))
        return Finished(step.pack_result(value, facts.limits))
    except Leaving:
        return SafePoint()
    except Exception as error:  # noqa: BLE001 - it is told to the process that asked
        return Failed(error, context.judge_item(failure_of(error, facts.attempt)))


async def _call_beside(
    step: Step[..., Any], context: StepContext, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a sync function; it ends for certain only with its OS process, which is its alone."""
    try:
        return await call_away(step.fn, context, args, kwargs)
    except asyncio.CancelledError:
        os.kill(os.getpid(), signal.SIGKILL)
        raise


class FarOperation:
    """What a context stands on, as far as it is needed there."""

    def __init__(self, desk: Pid, facts: Facts) -> None:
        self._desk = desk
        self.attempt = facts.attempt
        self.entry = FarEntry(facts)
        self.run = FarRun(desk, facts)

    def __repr__(self) -> str:
        return f"<step {self.entry.id} of job {self.run.job.id} in another process>"

    async def save_checkpoint(self, data: bytes) -> bool:
        """Have it written; tells whether the step is to stop there."""
        self.entry.checkpoint = data
        self.entry.checkpoint_no += 1
        return bool(await ask_desk(self._desk, "save_checkpoint", data))


class FarEntry:
    """The entry of the journal."""

    def __init__(self, facts: Facts) -> None:
        self.id = facts.step_id
        self.checkpoint = facts.checkpoint
        self.checkpoint_no = facts.checkpoint_no


class FarJob:
    """The job."""

    def __init__(self, facts: Facts) -> None:
        self.id = facts.job_id
        self.tenant = facts.tenant
        self.user = facts.user


class FarNode:
    """The worker."""

    def __init__(self, limits: PayloadLimits) -> None:
        self.limits = limits
        self.loop = asyncio.get_running_loop()


class FarRun:
    """The run of the job; a sign of progress goes to the real one."""

    def __init__(self, desk: Pid, facts: Facts) -> None:
        self._desk = desk
        self.job = FarJob(facts)
        self.node = FarNode(facts.limits)

    @property
    def progress_at(self) -> float:
        return self.node.loop.time()

    @progress_at.setter
    def progress_at(self, _: float) -> None:
        send(self._desk, "progress")


def find_step(facts: Facts) -> Step[..., Any]:
    """Find a step by the place of its function in a module.

    Raises:
        Drift: It is not there.
    """
    found = _find(facts)
    if found is None and any(load() for load in MISSING):
        found = _find(facts)
    if isinstance(found, Step):
        return cast("Step[..., Any]", found)
    if is_step_class(found):
        return step_of_object(cast("type[Any]", found)())
    if callable(found):
        return step_of(found)
    raise Drift(
        f"step {facts.step_id} cannot run in another OS process: "
        f"there is no {facts.name} in module {facts.module}"
    )


def _find(facts: Facts) -> object:
    if facts.module not in sys.modules:
        try:
            importlib.import_module(facts.module)
        except ModuleNotFoundError:
            if facts.file is None:
                raise
            import_file(facts.module, facts.file)
    return find_at(facts.module, facts.name)


def find_at(module: str, name: str) -> object:
    """Find what has this name in a module; None if there is nothing."""
    return reduce(_inside, name.split("."), cast("object", sys.modules.get(module)))


def _inside(holder: object, name: str) -> object:
    """Look one name further, but not into a step: the rest of the name is its function's."""
    if isinstance(holder, Step) or is_step_class(holder):
        return cast("object", holder)
    return getattr(holder, name, None)


# Where the wishes of a step in another OS process are done: written here, fenced, and durable.


class _ToBeAsked(Exception):
    """Only the receiver knows, and only the step can ask it."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class StepServer:
    """Serves one attempt of a step; each verb is a method."""

    def __init__(
        self,
        operation: "StepOperation[Any]",
        context: "StepContext",
        put_again: Callable[[Request[Any]], object],
    ) -> None:
        self._operation = operation
        self._context = context
        self._put_again = put_again  # lets a request be answered later
        self._spendings: dict[Place, Spending] = {}
        self.leaving: Leaving | None = None  # why the step was sent away

    async def answer(self, request: Request[Any]) -> None:
        """Do what the step asks for, and tell it what came of it.

        What must wait for another step does so aside: this one may have to end something first.
        """
        verb, *args = request.body
        if verb == "begin" and (freed := self._awaited(*args)) is not None:
            freed.add_done_callback(lambda _: self._put_again(request))
            return
        try:
            reply: object = Given(await getattr(self, verb)(*args))
        except Leaving as leaving:
            self.leaving = self.leaving or leaving
            reply = Leave()
        except Exception as error:  # noqa: BLE001 - it is raised there
            reply = Raised(error)
        request.reply(reply)

    async def save_checkpoint(self, data: bytes) -> bool:
        """Write a checkpoint; tells whether the step is to stop there."""
        return await self._operation.save_checkpoint(data)

    def _awaited(self, wish: Wish) -> "asyncio.Future[None] | None":
        return self._context.effects.awaited(wish.asked, cast("EffectOptions", wish.options))

    async def begin(self, wish: Wish) -> Begun | AskThere:
        """Write an intent, or find that none is needed, or that the receiver must be asked."""
        effects, options = self._context.effects, cast("EffectOptions", dict(wish.options))
        effects.come_by(wish.asked)
        if wish.can_query:
            options["query"] = partial(_answered, wish.answer)
        if wish.options.get("undo") is not None:
            place, given = wish.options["undo"]
            options["undo"] = (_step_at(place), given)
        try:
            return await effects.begin(wish.asked, options)
        except _ToBeAsked as ask:
            return AskThere(ask.key)

    async def done(self, begun: Begun, packed: PackedResult) -> Effect:
        """Write a result."""
        line = self._context.effects.keep_result(begun, packed)
        await self._operation.run.flush()
        return line

    async def failed(self, begun: Begun, fault: Fault, options: dict[str, Any]) -> None:
        """Write what an error says."""
        self._context.effects.keep_fault(begun, fault, cast("EffectOptions", options))

    async def record(self, *args: Any) -> None:
        """Keep a line of what has happened."""
        await self._context.effects.record(*args)

    async def was_recorded(self, kind: str, key: str) -> bool:
        """Tell whether something was recorded as done."""
        return await self._context.effects.was_recorded(kind, key)

    async def ask_person(self, place: Place, question: UserQuestion) -> bool:
        """Ask a person."""
        return await self._context.ask_person(place, question)

    async def spend(self, place: Place, amount: Amount) -> None:
        """Set an amount aside."""
        self._spendings[place] = await Spending(self._operation, place, amount)

    async def settle(self, place: Place, usd: Any, tokens: Any, calls: Any) -> None:
        """Note what was really spent."""
        await self._spendings[place].settle(usd=usd, tokens=tokens, calls=calls)


def _answered(answer: QueryAnswer | None, key: str) -> QueryAnswer:
    if answer is None:
        raise _ToBeAsked(key)
    return answer


def _step_at(place: StepAt) -> Step[..., Any]:
    found = find_at(place.module, place.name)
    if not isinstance(found, Step):
        raise DefinitionError(f"there is no step {place.name} in module {place.module}")
    return cast("Step[..., Any]", found)


# A step in another OS process, seen from here: it is started, served, and killed if need be.
#
# The function runs there with a context that looks the same; what it saves comes here as a request
# and is written here, fenced, as everything else.

# So often a step that waits for its turn says that it does.
_PATIENCE = 0.5

# How long to wait for a place that is being made free.
_LOOK_AGAIN = 0.02

# A step that kills its OS process again and again must not end the host for the others.
_MOST_DEATHS, _WITHIN = 1000, 60


async def keep_host(node: WorkerPort) -> None:
    """Be where the OS processes for steps belong; for ever."""
    steps = node.step_host
    await steps.wanted.wait()
    host = ProcessHost(
        steps.name,
        kind="os",
        workers=steps.workers,
        dedicated=True,
        kill_after=node.settings.cancel_grace,
        max_restarts=_MOST_DEATHS,
        max_seconds=_WITHIN,
    )
    async with host:
        me = current("the host of steps")
        keeper = monitor(me, host.pid)
        steps.ready.set()
        try:
            while True:
                match await me.events().receive():
                    case Cancel():
                        return
                    case Exit(ref=ref, result=result) if ref is keeper:
                        raise result.error or RuntimeError("the host of steps has ended")
                    case _:
                        pass
        finally:
            steps.ready.clear()


async def call_far(operation: "StepOperation[Any]", context: "StepContext") -> Any:
    """Run a step in an OS process of its own; its time begins when the function does."""
    steps = operation.run.node.step_host
    me = current("a step")
    events, requests, signs = me.events(), me.requests(), me.listen("progress", whole=False)
    operation.disarm()
    steps.wanted.set()
    await _patiently(context, steps.ready.wait)
    await _patiently(context, steps.places.acquire)
    desk = StepServer(operation, context, partial(_put_again, me))
    far = await _birth(operation, context, steps, me)
    while True:
        news: Any = (await select(requests, events, signs)).value
        match news:
            case Request():
                await desk.answer(cast("Request[Any]", news))
            case Exit(sender=sender, result=result) if sender is far.pid:
                if desk.leaving is not None:
                    raise desk.leaving
                return _outcome(operation, context, result)
            case Cancel():
                stop_politely(far, operation.run.node.settings.cancel_grace)
            case "begun":
                operation.arm()
                context.progress()
            case _:
                context.progress()


def _put_again(me: Process, request: Request[Any]) -> None:
    """Let a request be answered after what else there is."""
    if not me.done():
        send(me.pid, "progress", request)


async def _patiently(context: "StepContext", wait: Callable[[], Awaitable[object]]) -> None:
    """Wait for one's turn: a step that stands in a line is not stuck."""
    while True:
        context.progress()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await wait()
                return


async def _birth(
    operation: "StepOperation[Any]", context: "StepContext", steps: StepHost, me: Process
) -> Process:
    """Start it, with its end tied to ours: whoever kills this process kills that one."""
    args = (me.pid, _facts(operation, context))
    try:
        while True:
            try:
                options = Options(host=steps.name, monitor=True)
                far = give_birth(me.runtime, me, work_far, args, options)
                break
            except SpawnError:  # the one before has not quite gone
                await pause(_LOOK_AGAIN)
    except BaseException:
        steps.places.release()
        raise
    far.tie().at_death(steps.places.release)
    me.tie().at_death(lambda: None if far.done() else kill(far, "the step has ended"))
    return far


def _facts(operation: "StepOperation[Any]", context: "StepContext") -> Facts:
    step, run, entry = operation.step, operation.run, operation.entry
    assert entry.input is not None
    module = step.fn.__module__
    return Facts(
        module=module,
        file=getattr(sys.modules.get(module), "__file__", None),
        name=step.fn.__qualname__,
        input=entry.input,
        job_id=run.job.id,
        tenant=run.job.tenant,
        user=run.job.user,
        step_id=entry.id,
        attempt=operation.attempt,
        checkpoint=entry.checkpoint,
        checkpoint_no=entry.checkpoint_no,
        limits=run.node.limits,
        stopping=context.stopping,
    )


def _outcome(operation: "StepOperation[Any]", context: "StepContext", result: ExitResult) -> Any:
    """Give what the function gave, or raise what it raised."""
    match result.value:
        case Finished(output=output, checkpoint=None):
            return operation.step.unpack_result(output)
        case Finished(output=output, checkpoint=checkpoint):
            return Partial(operation.step.unpack_result(output), decode(checkpoint, Any))
        case SafePoint():
            raise AtSafePoint
        case Failed(error=error, item=item):
            context.item_judged = item
            raise error
        case _:
            why = result.error.cause if isinstance(result.error, HostDown) else result.error
            raise StepCrashed(f"the OS process of step {operation.entry.id} ended: {why}")
