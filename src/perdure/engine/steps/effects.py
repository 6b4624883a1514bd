"""Effects of a step: what it does to the world, written down before it is done.

begin     finds what an earlier attempt has left, resolves it, or writes INTENT
(call)    the function of the user, with the key
done      writes the result
failed    writes what the error says: certainly not, or nobody knows
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, cast

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import Codec, digest, encode
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import DefinitionError, IllegalTransition
from perdure.engine import events
from perdure.engine.crashpoint import crashpoint
from perdure.engine.journal.ledger import ledger_of
from perdure.engine.journal.verdict import Leaving, Unwound
from perdure.engine.people.ask import Held, Later, Settling
from perdure.jobs.definition import Step
from perdure.jobs.effect import (
    HAPPENED,
    KEY_TTL,
    NOT_CALLED,
    REFUSED_LATER,
    AskPerson,
    AskReceiver,
    CallAnew,
    DidNotHappen,
    Effect,
    EffectState,
    Happened,
    InDoubt,
    PackedResult,
    Place,
    Query,
    QueryAnswer,
    Resolution,
    UndoCall,
    Unknown,
    UseResult,
    after_query,
    business_key,
    business_of,
    effect_key,
    is_refusal,
    pack_result,
    recorded_of,
    resolve,
    settles_at,
    state_after,
    unpack_result,
)
from perdure.jobs.failure import failure_of
from perdure.jobs.model import EntryKind
from perdure.jobs.state import ENDED, JobState

if TYPE_CHECKING:
    from perdure.engine.steps.step import StepOperation


# What the code of a step asks for, and what came of the call; the same in every OS process.

Call: TypeAlias = Callable[[str], Any]

RESULT: Final = Codec[Any](Any, "the result of an effect")


class EffectOptions(TypedDict, total=False):
    """What may be said of an effect.

    `in_doubt`: "replay" if the receiver knows a repeated call by its key, else "ask" a person.
    `query`: asks the receiver, by the key, whether it happened.
    `settle_after`: how long after the last call the receiver is asked at the earliest; if not
        given, as long as the lease of the worker, or the step's `timeout` if that is longer.
    `key`: a business key: once in all jobs of the tenant.
    `key_ttl`: how long the receiver knows a key.
    `key_kept`: how long a business key is kept at least when its job is deleted; else for ever.
    `undo`: the step that undoes it, which takes the result; or that step and more arguments.
        None, if it is said: it may stay when the job fails. Else a job whose effect nothing undoes
        ends as FAILED, and names it.
    `details`: for people; secrets and people's data are not kept.
    """

    in_doubt: InDoubt
    query: Query
    settle_after: Duration
    key: str
    key_ttl: Duration
    key_kept: Duration
    undo: "Step[..., Any] | tuple[Step[..., Any], Mapping[str, Any]] | None"
    details: Any


class Asked(Struct, frozen=True):
    """An effect that the code asks for."""

    place: Place
    kind: str
    target: str


class Begun(Struct, frozen=True):
    """An effect that may be called now; or, if it is `settled`, must not be."""

    effect: Effect
    settled: bool = False
    repeated: bool = False  # it was called before, and perhaps that is still on its way


class Fault(Struct, frozen=True):
    """What the error of a call says about its effect."""

    state: EffectState
    error: bytes  # a packed `Failure`
    text: str
    proof: str
    asks: bool  # only a person can tell what became of it
    looks: bool  # the receiver can, and must be asked before anything else


def fault_of(begun: Begun, error: Exception, options: EffectOptions) -> Fault:
    """Judge the error of a call."""
    state, failure = state_after(error, repeated=begun.repeated), failure_of(error)
    refused_later = begun.repeated and is_refusal(error)
    may_repeat = options.get("in_doubt", "ask") == "replay" and not refused_later
    can_ask, is_doubt = options.get("query") is not None, state is EffectState.IN_DOUBT
    return Fault(
        state=state,
        error=failure.pack(),
        text=failure.summary(),
        proof=REFUSED_LATER if refused_later else "answer",
        asks=is_doubt and not can_ask and not may_repeat,
        looks=refused_later and can_ask,
    )


async def ask_receiver(query: Query, key: str) -> QueryAnswer:
    """Ask whether a call had its effect."""
    answer = query(key)
    if isawaitable(answer):
        answer = await answer
    if not isinstance(answer, Happened | DidNotHappen | Unknown):
        raise DefinitionError(
            f"a `query` gives Happened(result), DidNotHappen() or Unknown(), not {answer!r}"
        )
    return answer


LONGEST_KIND: Final = 100
LONGEST_TARGET: Final = 500


class Effects:
    """The effects of one attempt of a step."""

    def __init__(self, operation: "StepOperation[Any]", allot: Callable[[str], Place]) -> None:
        self._operation = operation
        self._run = operation.run
        self._ledger = ledger_of(self._run)
        step = operation.entry.id
        self._is_fresh = self._ledger.is_new(step) and not operation.recorded
        self._allot = allot
        self._came_by: set[Place] = set()

    def place(self, kind: str, target: str) -> Asked:
        """Allot the place of an effect: what it is, and the how manyth of its like."""
        self._check(kind, target)
        asked = Asked(self._allot(digest(kind, target)[:16]), kind, target)
        self.come_by(asked)
        return asked

    def come_by(self, asked: Asked) -> None:
        """Take note that the code asks for an effect."""
        self._came_by.add(asked.place)

    async def make(self, asked: Asked, call: Call, options: EffectOptions) -> Any:
        """Call the function once, or give what it gave before."""
        begun = await self.begin(asked, options)
        if begun.settled:
            return self.result(begun)
        try:
            value = call(begun.effect.key)
            if isawaitable(value):
                value = await value
        except BaseException as error:
            told = self.failed(begun, error, options)
            if told is not None:
                await told
            raise
        result = self.done(begun, value)
        return await result if isawaitable(result) else result

    async def begin(self, asked: Asked, options: EffectOptions) -> Begun:
        """Write the intent, or find that none is needed; one step at a time for a business key.

        Raises:
            Held: Only a person can tell what became of an earlier call.
            DefinitionError: It cannot be told from one on the other side of a checkpoint.
        """
        business = self._business(asked, options)
        if business is None:
            return await self._begin(asked, options)
        locks = self._ledger.key_locks
        await locks.lock(business, self)
        try:
            begun = await self._begin(asked, options)
        except BaseException:
            locks.unlock(business, self)
            raise
        if begun.settled:
            locks.unlock(business, self)
        return begun

    def awaited(self, asked: Asked, options: EffectOptions) -> "asyncio.Future[None] | None":
        """Return a future that is done when `begin` need not wait for another step any more."""
        business = self._business(asked, options)
        return None if business is None else self._ledger.key_locks.when_unlocked(business)

    def unlock_keys(self) -> None:
        """Unlock the keys of this attempt, which is over."""
        self._ledger.key_locks.unlock_all(self)

    async def _begin(self, asked: Asked, options: EffectOptions) -> Begun:
        found = await self._found(asked, options)
        if found is None:
            self._tell_apart(asked, options)
            await self._leave_none_behind(asked)
            return await self._intend(asked, options, 1)
        resolution = await self._resolved(found, options)
        match resolution:
            case UseResult():
                events.effect_reused(self._run, found)
                await self._note_borrowed(asked, found)
                return Begun(self._ledger.line(found), settled=True)
            case CallAnew(generation):
                return await self._intend(asked, options, generation)
            case AskPerson(why):
                self._doubt(found)
                raise self._left(Held(found, why))
            case _:
                await self._note_borrowed(asked, found)
                return Begun(await self._call_again(found, options), repeated=True)

    def result(self, begun: Begun) -> Any:
        """Give the recorded result, exactly."""
        return unpack_result(begun.effect, RESULT)

    def done(self, begun: Begun, value: Any) -> Any:
        """Keep the result; it is durable before anything that the step does next."""
        crashpoint("after_call")
        packed = pack_result(value, RESULT, self._run.node.limits)
        return unpack_result(self.keep_result(begun, packed), RESULT)

    def keep_result(self, begun: Begun, packed: PackedResult) -> Effect:
        """Keep a result that is packed already."""
        self._must_count()
        line = begun.effect.to(
            EffectState.DONE,
            self._run.now(),
            result=packed.data,
            problem=packed.problem,
            proof="answer",
        )
        self._write(line)
        self._unlock(line)
        return line

    def failed(
        self, begun: Begun, error: BaseException, options: EffectOptions
    ) -> Awaitable[None] | None:
        """Keep what the error of a call says about its effect.

        Raises:
            Held: Nobody knows, and the receiver can be neither asked nor called again.
        """
        if isinstance(error, Exception):
            self.keep_fault(begun, fault_of(begun, error, options), options)
        else:  # the step is ended from outside: the next attempt finds the intent
            self._unlock(begun.effect)

    def keep_fault(self, begun: Begun, fault: Fault, options: EffectOptions) -> None:
        """Keep what is known after a call that failed.

        Raises:
            Held: As above.
            Settling: The receiver must be asked.
        """
        self._must_count()
        line, now = begun.effect, self._run.now()
        told = {"error": fault.error, "proof": fault.proof}
        if line.state is not fault.state:
            line = line.to(fault.state, now, **told)
            self._write(line)
        elif line.proof != fault.proof:  # it is in doubt, and more so
            line = replace(line, ended_at=now, **told)
            self._write(line)
        self._unlock(line)
        if fault.looks:
            raise self._left(Settling(line, settles_at(line, self._settle_after(options))))
        if fault.asks:
            raise self._left(Held(line, f"the call failed with {fault.text}"))

    # By hand

    async def record(self, kind: str, key: str, target: str, details: Mapping[str, Any]) -> None:
        """Keep a line of what has happened already."""
        self._check(kind, target or key)
        run, now = self._run, self._run.now()
        business = recorded_of(run.job.tenant, kind, key)
        found = await self._ledger.latest_of_business(business)
        if found is not None and found.state is EffectState.DONE:
            return
        generation = 1 if found is None else found.generation + 1
        line = Effect(
            job_id=run.job.id,
            tenant=run.job.tenant,
            no=0,
            place=Place(self._operation.entry.id, 1, f"recorded {digest(kind, key)[:16]}"),
            generation=generation,
            key=business_key(business, generation),
            business=business,
            kind=kind,
            target=target or key,
            state=EffectState.DONE,
            details=self._details(details or None),
            result=b"null",
            proof="recorded",
            called_at=now,
            ended_at=now,
        )
        try:
            await run.write(*self._operation.unwritten(), effects=(line,))
        except IllegalTransition:
            if not await self.was_recorded(kind, key):  # else another job was faster
                raise
        else:
            self._ledger.know(line)

    async def was_recorded(self, kind: str, key: str) -> bool:
        """Tell whether something was recorded as done."""
        business = recorded_of(self._run.job.tenant, kind, key)
        found = await self._ledger.latest_of_business(business)
        return found is not None and found.state is EffectState.DONE

    # Looking back

    async def leave_none_open(self) -> None:
        """Let the step end only if its code has come by what an earlier attempt left open.

        Raises:
            Held: It has not, so only a person can tell what became of that.
        """
        await self._hold_stray(self._came_by, "the code has not asked for it again")

    async def _found(self, asked: Asked, options: EffectOptions) -> Effect | None:
        business = self._business(asked, options)
        if business is not None:
            return await self._ledger.latest_of_business(business)
        return None if self._is_fresh else await self._ledger.latest(asked.place)

    def _business(self, asked: Asked, options: EffectOptions) -> str | None:
        key = options.get("key")
        return None if key is None else business_of(self._run.job.tenant, asked.kind, key)

    def _tell_apart(self, asked: Asked, options: EffectOptions) -> None:
        """Refuse what may be a second one, or the first one asked for again: nobody can know."""
        if options.get("key") is None and self._ledger.has_like(asked.place):
            raise DefinitionError(
                f"{asked.place.step} began a {asked.kind} to {asked.target} before a checkpoint, "
                "and nobody can tell whether this is the same one. Go on from the checkpoint, "
                f"and give this one a target of its own, such as {asked.target + ', part 2'!r}"
            )

    async def _leave_none_behind(self, asked: Asked) -> None:
        """Begin nothing new before the code has come by what an earlier attempt left open."""
        # What is open at this very place has another key: `key` was another one then.
        others = self._came_by - {asked.place}
        why = f"the code now asks for a {asked.kind} to {asked.target} instead"
        await self._hold_stray(others, why)

    async def _hold_stray(self, came_by: set[Place], why: str) -> None:
        if self._is_fresh:
            return
        stray = await self._ledger.open_behind(self._operation.entry.id, came_by)
        if stray is not None:
            self._doubt(stray)
            raise self._left(Held(stray, why))

    async def _resolved(self, found: Effect, options: EffectOptions) -> Resolution:
        query = options.get("query")
        if found.job_id != self._run.job.id and found.state in HAPPENED:
            return await self._of_another(found)
        decided = resolve(found, self._run.now(), can_query=query is not None)
        if not isinstance(decided, AskReceiver) or query is None:
            return decided
        at = settles_at(found, self._settle_after(options))
        if self._run.now() < at:
            raise self._left(Settling(found, at))
        answer = await ask_receiver(query, found.key)
        if isinstance(answer, Happened):
            self._settle(found, answer.result)
        decided = after_query(found, answer, self._run.now())
        if isinstance(decided, CallAnew):
            self._write(found.to(EffectState.FAILED, self._run.now(), proof="query"))
        return decided

    def _settle_after(self, options: EffectOptions) -> float:
        """Give how long a call may be under way: the receiver knows nothing of it meanwhile."""
        given = job_seconds(options.get("settle_after"))
        if given is not None:
            return given
        return max(self._run.node.settings.lease, self._operation.step.timeout or 0.0)

    async def _of_another(self, found: Effect) -> Resolution:
        """Decide about what another job did, or is about to do.

        Raises:
            Later: It is at it, in doubt about it, or about to undo it.
        """
        if found.state is EffectState.DONE and not await self._is_being_undone(found.job_id):
            return UseResult()
        raise self._left(Later.for_effect(found))

    async def _is_being_undone(self, job_id: str) -> bool:
        job = await self._run.ask(lambda store: store.job(job_id))
        if job is None or job.state in ENDED:
            return False
        if job.state is JobState.COMPENSATING:
            return True
        journal = await self._run.ask(lambda store: store.journal(job_id))
        return any(entry.kind is EntryKind.UNDO for entry in journal)  # it has stopped in the midst

    def _settle(self, found: Effect, result: Any) -> None:
        packed = pack_result(result, RESULT, self._run.node.limits)
        self._write(
            found.to(
                EffectState.DONE,
                self._run.now(),
                result=packed.data,
                problem=packed.problem,
                proof="query",
            )
        )

    def _doubt(self, found: Effect) -> None:
        if found.state is EffectState.INTENT and found.job_id == self._run.job.id:
            self._write(found.to(EffectState.IN_DOUBT, self._run.now()))

    def _left(self, leaving: Leaving) -> Leaving:
        context = self._operation.context
        return leaving if context is None else context.leave(leaving)

    # Writing

    async def _intend(self, asked: Asked, options: EffectOptions, generation: int) -> Begun:
        run, operation = self._run, self._operation
        place, kind, target = asked.place, asked.kind, asked.target
        crashpoint("before_intent")
        lives, kept = job_seconds(options.get("key_ttl")), job_seconds(options.get("key_kept"))
        business = self._business(asked, options)
        own_key = effect_key(run.job.tenant, run.job.id, place, generation)
        line = Effect(
            job_id=run.job.id,
            tenant=run.job.tenant,
            no=0,
            place=place,
            generation=generation,
            key=own_key if business is None else business_key(business, generation),
            business=business,
            kept_until=None if kept is None else run.now() + kept,
            kind=kind,
            target=target,
            in_doubt=options.get("in_doubt", "ask"),
            key_ttl=KEY_TTL if lives is None else lives,
            details=self._details(options.get("details")),
            undo=self._undo(options.get("undo")),
            stays="undo" in options and options["undo"] is None,
            called_at=run.now(),
        )
        self._must_be_ours()
        try:
            # The step goes along: a ledger with a line of a step that is not in the journal
            # would not be looked at when the step is begun anew.
            await run.write(*operation.unwritten(), effects=(line,))
            crashpoint("after_intent")
            self._must_be_ours()
        except IllegalTransition:
            return await self._after_another(asked, options, line.key)
        except Exception:
            raise
        except BaseException:  # ended from outside, before a byte has left
            self._write(line.to(EffectState.FAILED, line.called_at, proof=NOT_CALLED))
            raise
        self._ledger.know(line)
        events.effect_written(run, line)
        return Begun(line)

    async def _note_borrowed(self, asked: Asked, found: Effect) -> None:
        """Write down that it is another's, before its result is given: it is not ours to undo."""
        run, operation, now = self._run, self._operation, self._run.now()
        if (found.job_id, found.place.step) == (run.job.id, operation.entry.id):
            return
        line = Effect(
            job_id=run.job.id,
            tenant=run.job.tenant,
            no=0,
            place=asked.place,
            generation=0,
            key=effect_key(run.job.tenant, run.job.id, asked.place, 0),
            kind=asked.kind,
            target=asked.target,
            state=EffectState.BORROWED,
            proof=found.job_id,
            called_at=now,
            ended_at=now,
        )
        await run.write(*operation.unwritten(), effects=(line,))
        self._ledger.know(line)

    async def _call_again(self, found: Effect, options: EffectOptions) -> Effect:
        """Note when the same key is used again, if the receiver will be asked about that."""
        self._must_be_ours()
        if options.get("query") is None:
            return found
        line = replace(found, last_called_at=self._run.now())
        await self._run.write(*self._operation.unwritten(), effects=(line,))
        self._ledger.know(line)
        self._must_be_ours()
        return line

    async def _after_another(self, asked: Asked, options: EffectOptions, key: str) -> Begun:
        """Do as one must when somebody was faster, in another job or in this one."""
        other = await self._ledger.by_key(key)
        if other is None:
            raise IllegalTransition(f"the key of the {asked.kind} to {asked.target} is taken")
        if other.job_id != self._run.job.id:
            raise self._left(Later.for_effect(other))
        return await self._begin(asked, options)

    def _write(self, line: Effect) -> None:
        events.effect_written(self._run, line)
        self._ledger.know(line)
        self._run.line(line)

    def _unlock(self, line: Effect) -> None:
        if line.business is not None:
            self._ledger.key_locks.unlock(line.business, self)

    def _must_count(self) -> None:
        """Let the word of an attempt that is over, whose thread goes on, not count any more."""
        context = self._operation.context
        if context is None or context.over:
            raise Unwound

    def _must_be_ours(self) -> None:
        """Let no byte leave when another worker may own the job."""
        run, context = self._run, self._operation.context
        if context is None or context.over or run.verdict is not None:
            raise Unwound
        if run.node.loop.time() >= run.trusted_until:
            run.lose()
            raise Unwound

    def _check(self, kind: str, target: str) -> None:
        if not kind or len(kind) > LONGEST_KIND or not kind.isprintable():
            raise DefinitionError(f"the kind of an effect is a short text, not {kind!r}")
        if len(target) > LONGEST_TARGET or not target.isprintable():
            raise DefinitionError(f"the target of an effect is a short text, not {target!r}")

    def _details(self, details: Any) -> bytes | None:
        if details is None:
            return None
        node = self._run.node
        kept = node.policy.redaction.apply(details, self._run.job.tenant, node.fingerprint_key)
        return encode(kept, what="the details of an effect", limits=self._run.node.limits)

    def _undo(self, undo: Any) -> UndoCall | None:
        if undo is None:
            return None
        step, given = cast("Any", undo if isinstance(undo, tuple) else (undo, {}))
        if not isinstance(step, Step):
            raise DefinitionError(f"`undo` is a step that takes the result, not {step!r}")
        name = self._run.node.registry.name(cast("Any", step))
        return UndoCall(name, encode(dict(given), what="the arguments of an undo"))
