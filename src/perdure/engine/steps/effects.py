"""Effects of a step: what it does to the world, recorded before it is done.

An effect is a line of the ledger that moves through these states:

    begin     find what an earlier attempt left and resolve it, or write INTENT
    (call)    the user's function is called with the key, where the step runs
    done      write the result
    failed    write what the error proves: it did not happen, or nobody knows

After a crash between INTENT and the result, only the receiver knows what became of the call. So an
intent is never dropped: what is in doubt is resolved by querying the receiver (`query`), by calling
it again with the same key (`in_doubt="replay"`), or by a person.

`Effects` runs on the loop of the worker that holds the lease, wherever the step itself runs. The
values at the top of this file are the same in every OS process.
"""

import asyncio
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeAlias, TypedDict, cast

from msgspec import Struct
from msgspec.structs import replace

from perdure.base.codec import Codec, digest, encode
from perdure.base.duration import Duration, job_seconds
from perdure.base.errors import DefinitionError, EffectInDoubt, IllegalTransition
from perdure.engine import crashpoint, events
from perdure.engine.journal.run import Run
from perdure.engine.journal.step_exit import CallInProgress, StepExit
from perdure.engine.journal.verdict import NeedsAttention, Unwound
from perdure.engine.people.attention import alerts
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
)
from perdure.jobs.failure import failure_of
from perdure.jobs.model import JobEvent
from perdure.jobs.outbox import Notice, NoticeKind

EffectCall: TypeAlias = Callable[[str], Any]

RESULT: Final = Codec[Any](Any, "the result of an effect", "record")


class EffectOptions(TypedDict, total=False):
    """The options of an effect.

    `in_doubt`: "replay" if the receiver recognises a repeated call by its key, else "ask" a person.
    `query`: asks the receiver, by the key, whether it happened.
    `settle_after`: how long to wait after the last call before the receiver is queried; by default
        the lease of the worker, or the step's `timeout` if that is longer.
    `key`: a business key: the effect happens once across all jobs of the tenant.
    `key_ttl`: how long the receiver remembers a key.
    `key_kept`: how long a business key is kept after the call, even if its job is deleted; by
        default for ever.
    `undo`: the step that undoes it, which takes the result; or that step and more arguments.
        An explicit None means that the effect may stay when the job fails. Without the option, a
        job that leaves an effect which nothing undoes ends as FAILED, and names it.
    `details`: for people; secrets and personal data are not stored.
    """

    in_doubt: InDoubt
    query: Query
    settle_after: Duration
    key: str
    key_ttl: Duration
    key_kept: Duration
    undo: "Step[..., Any] | tuple[Step[..., Any], Mapping[str, Any]] | None"
    details: Any


class EffectRequest(Struct, frozen=True):
    """An effect that the code asks for."""

    place: Place
    kind: str
    target: str


class BegunEffect(Struct, frozen=True):
    """An effect that may be called now; or, if it is `settled`, must not be."""

    effect: Effect
    settled: bool = False
    repeated: bool = False  # it was called before, and that call may still be on its way


class CallFault(Struct, frozen=True):
    """What the error of a call says about its effect."""

    state: EffectState
    error: bytes  # a packed `Failure`
    text: str
    proof: str
    needs_person: bool  # only a person can find out what became of it
    needs_query: bool  # the receiver can, and must be queried first


def fault_of(begun: BegunEffect, error: Exception, options: EffectOptions) -> CallFault:
    """Return what the error of a call says about its effect."""
    state, failure = state_after(error, repeated=begun.repeated), failure_of(error)
    refused_later = begun.repeated and is_refusal(error)
    may_repeat = options.get("in_doubt", "ask") == "replay" and not refused_later
    can_ask, is_doubt = options.get("query") is not None, state is EffectState.IN_DOUBT
    return CallFault(
        state=state,
        error=failure.pack(),
        text=failure.summary(),
        proof=REFUSED_LATER if refused_later else "answer",
        needs_person=is_doubt and not can_ask and not may_repeat,
        needs_query=refused_later and can_ask,
    )


async def ask_receiver(query: Query, key: str) -> QueryAnswer:
    """Ask the receiver whether a call had its effect; return its answer."""
    answer = query(key)
    if isawaitable(answer):
        answer = await answer
    if not isinstance(answer, Happened | DidNotHappen | Unknown):
        raise DefinitionError(
            f"a `query` returns Happened(result), DidNotHappen() or Unknown(), not {answer!r}"
        )
    return answer


class LiveAttempt(Protocol):
    """The attempt that makes the effects: what it reports counts until it is over."""

    @property
    def over(self) -> bool: ...


class Effects:
    """The effects of one attempt of a step."""

    def __init__(self, step: CallInProgress, attempt: LiveAttempt) -> None:
        self._step = step
        self._attempt = attempt
        self._run = step.run
        self._ledger = self._run.ledger or self._run.open_ledger()
        # Whether no earlier attempt can have left anything: then the ledger need not be read.
        self._is_fresh = self._ledger.is_first_use(step.entry.id) and not step.recorded
        self.visited: set[Place] = set()  # where the code has asked for effects

    async def begin(self, request: EffectRequest, options: EffectOptions) -> BegunEffect:
        """Write the intent, or find that none is needed; a business key admits one step at a time.

        Raises:
            ExitForDecision: Only a person can find out what became of an earlier call.
            DefinitionError: It cannot be distinguished from an effect before a checkpoint.
        """
        if (key := options.get("key")) is None:
            if self._is_fresh:
                return await self._first_call(request, options)
            return await self._begin(request, options, await self._ledger.latest(request.place))
        business = business_of(self._run.job.tenant, request.kind, key)
        locks = self._ledger.key_locks
        await locks.lock(business, self)
        try:
            found = await self._ledger.latest_of_business(business)
            begun = await self._begin(request, options, found)
        except BaseException:
            locks.unlock(business, self)
            raise
        if begun.settled:
            locks.unlock(business, self)
        return begun

    def when_unlocked(
        self, request: EffectRequest, options: EffectOptions
    ) -> "asyncio.Future[None] | None":
        """Return a future that is done when `begin` no longer has to wait for another step."""
        key = options.get("key")
        if key is None:
            return None
        business = business_of(self._run.job.tenant, request.kind, key)
        return self._ledger.key_locks.when_unlocked(business)

    def unlock_keys(self) -> None:
        """Unlock the keys of this attempt, which is over."""
        self._ledger.key_locks.unlock_all(self)

    async def _begin(
        self, request: EffectRequest, options: EffectOptions, found: Effect | None
    ) -> BegunEffect:
        if found is None:
            return await self._first_call(request, options)
        resolution = await self._resolve(found, options)
        match resolution:
            case UseResult():
                self._note_reused(found)
                await self._note_borrowed(request, found)
                return BegunEffect(self._ledger.line(found), settled=True)
            case CallAnew(generation):
                return await self._write_intent(request, options, generation)
            case AskPerson(why):
                self._put_in_doubt(found)
                raise ExitForDecision(found, why)
            case _:
                await self._note_borrowed(request, found)
                return BegunEffect(await self._call_again(found, options), repeated=True)

    async def _first_call(self, request: EffectRequest, options: EffectOptions) -> BegunEffect:
        if options.get("key") is None and self._ledger.has_like(request.place):
            # It may be a second one, or the first one asked for again: nobody can know.
            raise DefinitionError(
                f"{request.place.step} began a {request.kind} to {request.target} before a "
                "checkpoint, and nobody can tell whether this is the same one. Go on from the "
                "checkpoint, and give this one a target of its own, "
                f"such as {request.target + ', part 2'!r}"
            )
        if not self._is_fresh:
            # Begin nothing new before the code has asked for what an earlier attempt left open.
            # What is open at this place has another key: the code used another `key` then.
            why = f"the code now asks for a {request.kind} to {request.target} instead"
            await self._check_for_stray(self.visited - {request.place}, why)
        return await self._write_intent(request, options, 1)

    def done(self, begun: BegunEffect, packed: PackedResult) -> Effect:
        """Store the result of a call; it is durable before anything that the step does next."""
        if self._attempt.over:
            raise Unwound
        line = begun.effect.to(
            EffectState.DONE,
            self._run.now(),
            result=packed.data,
            problem=packed.problem,
            proof="answer",
        )
        self._write(line)
        if line.business is not None:
            self._unlock(line)
        return line

    def failed(self, begun: BegunEffect, fault: CallFault | None, options: EffectOptions) -> None:
        """Store what is known after a call that failed, or was interrupted (None).

        Raises:
            ExitForDecision: It is in doubt, and can be neither queried nor called again.
            ExitToQuery: The receiver must be queried.
        """
        line = begun.effect
        if fault is None:
            self._interrupted(line)
            return
        # A thread may still run after its attempt is over: what it reports no longer counts.
        if self._attempt.over:
            raise Unwound
        now, known = self._run.now(), {"error": fault.error, "proof": fault.proof}
        if line.state is not fault.state:
            line = line.to(fault.state, now, **known)
            self._write(line)
        elif line.proof != fault.proof:  # it was in doubt already, and now there is one more reason
            line = replace(line, ended_at=now, **known)
            self._write(line)
        self._unlock(line)
        if fault.needs_query:
            raise ExitToQuery(line, settles_at(line, self._settle_after(options)))
        if fault.needs_person:
            raise ExitForDecision(line, f"the call failed with {fault.text}")

    def _interrupted(self, line: Effect) -> None:
        """Leave a call open; the next attempt finds the intent.

        Nobody knows whether it happened. So if its receiver must not be called again, this attempt
        can neither make another effect nor end: to it, the call is one that an earlier one left.
        """
        self._unlock(line)
        if line.in_doubt == "ask" or self._step.step.is_tool:
            self.visited.discard(line.place)
            self._is_fresh = False

    # Recorded by the code

    async def record(self, kind: str, key: str, target: str, details: Mapping[str, Any]) -> None:
        """Write a line for something that has already happened."""
        run, now = self._run, self._run.now()
        business = recorded_of(run.job.tenant, kind, key)
        found = await self._ledger.latest_of_business(business)
        if self._is_hit(found):
            return
        generation = 1 if found is None else found.generation + 1
        line = Effect(
            job_id=run.job.id,
            tenant=run.job.tenant,
            no=0,
            place=Place(self._step.entry.id, 1, f"recorded {digest(kind, key)[:16]}"),
            generation=generation,
            key=business_key(business, generation),
            business=business,
            kind=kind,
            target=target or key,
            state=EffectState.DONE,
            details=self._redact(details) if details else None,
            result=b"null",
            proof="recorded",
            called_at=now,
            ended_at=now,
        )
        try:
            await run.write(*self._step.take_start_record(), effects=(line,))
        except IllegalTransition:
            if not await self.was_recorded(kind, key):  # else another job was faster
                raise
        else:
            self._ledger.add(line)

    async def was_recorded(self, kind: str, key: str) -> bool:
        """Whether something was recorded as done."""
        business = recorded_of(self._run.job.tenant, kind, key)
        return self._is_hit(await self._ledger.latest_of_business(business))

    def _is_hit(self, found: Effect | None) -> bool:
        """Whether something was recorded before, and so is not repeated."""
        if found is None or found.state is not EffectState.DONE:
            return False
        self._note_reused(found)
        return True

    def _note_reused(self, found: Effect) -> None:
        """Count that an effect is not repeated: the next write of the run does, and telemetry."""
        self._run.reused += 1
        events.effect_reused(self._run, found)

    # What earlier attempts have left

    async def check_none_left_open(self) -> None:
        """Check that the code has asked for everything that an earlier attempt left open.

        Raises:
            ExitForDecision: It has not, so only a person can find out what became of the rest.
        """
        if not self._is_fresh:
            await self._check_for_stray(self.visited, "the code has not asked for it again")

    async def _check_for_stray(self, visited: set[Place], why: str) -> None:
        stray = await self._ledger.open_elsewhere(self._step.entry.id, visited)
        if stray is not None:
            self._put_in_doubt(stray)
            raise ExitForDecision(stray, why)

    async def _resolve(self, found: Effect, options: EffectOptions) -> Resolution:
        query = options.get("query")
        if found.job_id != self._run.job.id and found.state in HAPPENED:
            return await self._resolve_other_job(found)
        decided = resolve(found, self._run.now(), can_query=query is not None)
        if not isinstance(decided, AskReceiver) or query is None:
            return decided
        at = settles_at(found, self._settle_after(options))
        if self._run.now() < at:
            raise ExitToQuery(found, at)
        answer = await ask_receiver(query, found.key)
        if isinstance(answer, Happened):
            self._write_answer(found, answer.result)
        decided = after_query(found, answer, self._run.now())
        if isinstance(decided, CallAnew):
            self._write(found.to(EffectState.FAILED, self._run.now(), proof="query"))
        return decided

    def _settle_after(self, options: EffectOptions) -> float:
        """Return how long a call may be on its way before the receiver knows of it."""
        given = job_seconds(options.get("settle_after"))
        if given is not None:
            return given
        return max(self._run.node.settings.lease, self._step.step.timeout or 0.0)

    async def _resolve_other_job(self, found: Effect) -> Resolution:
        """Decide about an effect of another job under the same business key.

        Raises:
            ExitForOtherJob: It is being made, in doubt, or about to be undone.
        """
        if found.state is EffectState.DONE and not await self._run.ask(
            lambda store: store.is_being_undone(found.job_id)
        ):
            return UseResult()
        raise ExitForOtherJob.for_effect(found)

    def _write_answer(self, found: Effect, result: Any) -> None:
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

    def _put_in_doubt(self, found: Effect) -> None:
        put_in_doubt(self._run, found)

    # Writing

    async def _write_intent(
        self, request: EffectRequest, options: EffectOptions, generation: int
    ) -> BegunEffect:
        """Write the intent: from here on, the receiver may have been called."""
        run = self._run
        if crashpoint.wanted:
            crashpoint.reach("before_intent")
        line = self._new_line(request, options, generation)
        self._check_lease()
        try:
            # The step is written too: a line whose step is not in the journal would not be found
            # when the step begins again.
            await run.write(*self._step.take_start_record(), effects=(line,))
            if crashpoint.wanted:
                crashpoint.reach("after_intent")
            self._check_lease()
        except IllegalTransition:
            return await self._after_conflict(request, options, line.key)
        except Exception:
            raise
        except BaseException:  # interrupted before anything was sent
            self._write(line.to(EffectState.FAILED, line.called_at, proof=NOT_CALLED))
            raise
        self._ledger.add(line)
        if events.listens(events.EFFECT["INTENT"]):
            events.effect_written(run, line)
        return BegunEffect(line)

    def _new_line(self, request: EffectRequest, options: EffectOptions, generation: int) -> Effect:
        job, now, place = self._run.job, self._run.now(), request.place
        business = None
        if (key := options.get("key")) is not None:
            business = business_of(job.tenant, request.kind, key)
            key = business_key(business, generation)
        ttl = job_seconds(options["key_ttl"]) if "key_ttl" in options else None
        kept = job_seconds(options["key_kept"]) if "key_kept" in options else None
        details, undo = options.get("details"), options.get("undo")
        return Effect(
            job_id=job.id,
            tenant=job.tenant,
            no=0,
            place=place,
            generation=generation,
            key=key or effect_key(job.tenant, job.id, place, generation),
            business=business,
            kept_until=None if kept is None else now + kept,
            kind=request.kind,
            target=request.target,
            in_doubt=options.get("in_doubt", "ask"),
            key_ttl=KEY_TTL if ttl is None else ttl,
            details=None if details is None else self._redact(details),
            undo=None if undo is None else self._undo_call(undo),
            stays="undo" in options and undo is None,
            called_at=now,
        )

    async def _note_borrowed(self, request: EffectRequest, found: Effect) -> None:
        """Record that another job owns an effect before using its result: we must not undo it."""
        run, now = self._run, self._run.now()
        if (found.job_id, found.place.step) == (run.job.id, self._step.entry.id):
            return
        line = Effect(
            job_id=run.job.id,
            tenant=run.job.tenant,
            no=0,
            place=request.place,
            generation=0,
            key=effect_key(run.job.tenant, run.job.id, request.place, 0),
            kind=request.kind,
            target=request.target,
            state=EffectState.BORROWED,
            proof=found.job_id,
            called_at=now,
            ended_at=now,
        )
        await run.write(*self._step.take_start_record(), effects=(line,))
        self._ledger.add(line)

    async def _call_again(self, found: Effect, options: EffectOptions) -> Effect:
        """Record when the same key is used again, if the receiver can be queried about it."""
        self._check_lease()
        if options.get("query") is None:
            return found
        line = replace(found, last_called_at=self._run.now())
        await self._run.write(*self._step.take_start_record(), effects=(line,))
        self._ledger.add(line)
        self._check_lease()
        return line

    async def _after_conflict(
        self, request: EffectRequest, options: EffectOptions, key: str
    ) -> BegunEffect:
        """Continue when somebody else has written this key first, in another job or in this one."""
        other = await self._ledger.by_key(key)
        if other is None:
            raise IllegalTransition(f"the key of the {request.kind} to {request.target} is taken")
        if other.job_id != self._run.job.id:
            raise ExitForOtherJob.for_effect(other)
        found = await self._find(request, options)
        return await self._begin(request, options, found)

    async def _find(self, request: EffectRequest, options: EffectOptions) -> Effect | None:
        if (key := options.get("key")) is None:
            return None if self._is_fresh else await self._ledger.latest(request.place)
        business = business_of(self._run.job.tenant, request.kind, key)
        return await self._ledger.latest_of_business(business)

    def _write(self, line: Effect) -> None:
        _write_line(self._run, line)

    def _unlock(self, line: Effect) -> None:
        if line.business is not None:
            self._ledger.key_locks.unlock(line.business, self)

    def _check_lease(self) -> None:
        """Make sure that nothing is sent once another worker may own the job."""
        run = self._run
        if self._attempt.over or run.verdict is not None:
            raise Unwound
        if run.node.lease_time() >= run.trusted_until:
            run.lose_lease()
            raise Unwound

    def _redact(self, details: Any) -> bytes:
        node = self._run.node
        kept = node.policy.redaction.apply(details, self._run.job.tenant, node.fingerprint_key)
        return encode(kept, what="the details of an effect", kind="record", limits=node.limits)

    def _undo_call(self, undo: Any) -> UndoCall:
        step, given = cast("Any", undo if isinstance(undo, tuple) else (undo, {}))
        if not isinstance(step, Step):
            raise DefinitionError(f"`undo` is a step that takes the result, not {step!r}")
        name = self._run.node.registry.name(cast("Any", step))
        return UndoCall(name, encode(dict(given), what="the arguments of an undo"))


def put_in_doubt(run: Run, found: Effect) -> tuple[Notice, ...]:
    """Write with the next write of the job that nobody knows what became of a call of its own.

    Returns:
        The notices that tell people so; none if it was in doubt before.
    """
    if found.state is not EffectState.INTENT or found.job_id != run.job.id:
        return ()
    _write_line(run, found.to(EffectState.IN_DOUBT, run.now()))
    return alerts(run, NoticeKind.IN_DOUBT, found.key, f"{found.kind} to {found.target}")


def _write_line(run: Run, line: Effect) -> None:
    if events.listens(events.EFFECT[line.state.value]):
        events.effect_written(run, line)
    run.open_ledger().add(line)
    run.buffer_effect(line)


# Exits: an attempt cannot continue before somebody has found out about an effect

# The shortest and the longest pause before checking again on another job's effect.
_SOON, _LATE = 0.1, 30.0


class ExitForDecision(StepExit):
    """Leaves a step that cannot continue until a person has said what became of an effect."""

    def __init__(self, effect: Effect, why: str) -> None:
        super().__init__(f"the {effect.kind} to {effect.target}: {why}")
        self.effect = effect
        self.why = why

    async def apply(self, step: CallInProgress) -> None:
        """Write that the effect is in doubt, alert people, and let the run end."""
        run, effect, why = step.run, self.effect, self.why
        about = {"step": step.entry.id, "kind": effect.kind, "target": effect.target}
        event = JobEvent(type="effect.in_doubt", data={**about, "why": why}, actor=run.node.owner)
        notices = alerts(run, NoticeKind.IN_DOUBT, effect.key, str(self))
        await run.write(step.uncount(), events=(event,), notices=notices)
        failure = failure_of(EffectInDoubt(_sentence(effect, why)))
        run.end(NeedsAttention(failure, _choices(effect), alerted=True))


class ExitForOtherJob(StepExit):
    """Leaves a step until another job has settled or undone its effect under the same key."""

    def __init__(self, job_id: str, what: str, since: float) -> None:
        super().__init__(f"job {job_id} must first settle {what}, which has the same key")
        self._since = since

    @classmethod
    def for_effect(cls, effect: Effect) -> "ExitForOtherJob":
        """Wait for an effect under the same business key."""
        return cls(effect.job_id, f"the {effect.kind} to {effect.target}", effect.called_at)

    async def apply(self, step: CallInProgress) -> None:
        """Begin the step again after a pause, which grows with the time waited so far."""
        now = step.run.now()
        pause = min(max((now - self._since) / 2, _SOON), _LATE)
        await _begin_again(step, now + pause, str(self))


class ExitToQuery(StepExit):
    """Leaves a step until no call can still be on its way, and the receiver can be queried."""

    def __init__(self, effect: Effect, at: float) -> None:
        what = f"the {effect.kind} to {effect.target}"
        super().__init__(f"the last call of {what} may still be under way; the receiver is asked")
        self._at = at

    async def apply(self, step: CallInProgress) -> None:
        """Begin the step again at that time."""
        await _begin_again(step, self._at, str(self))


async def _begin_again(step: CallInProgress, at: float, why: str) -> None:
    error = failure_of(EffectInDoubt(why)).pack()
    step.entry = replace(step.uncount(), wake_at=at, error=error)
    await step.run.write(step.entry)
    step.start_again = True


def _sentence(effect: Effect, why: str) -> str:
    return (
        f"nobody knows whether the {effect.kind} to {effect.target} happened: {why}. "
        "Find out, then say that it happened, that it did not, or that all is to be undone: "
        "`perdure effects resolve`, or `handle.resolve`"
    )


def _choices(effect: Effect) -> bytes:
    asked = {
        "kind": "effect",
        "key": effect.key,
        "effect": effect.kind,
        "target": effect.target,
        "choices": ["happened", "did not happen", "compensate"],
    }
    return encode([asked])
