"""The context that the code of a job gets.

The code is ordinary Python, but it runs again from its start after every interruption. So
everything that it does to the world, and everything that may differ from run to run, goes through
this context, which looks it up in the journal first.
"""

import random
import uuid
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from perdure.base.codec import decode, digest, encode
from perdure.base.duration import Duration, job_seconds
from perdure.engine.journal.run import Operation, Run
from perdure.engine.journal.verdict import Unwound
from perdure.engine.people.ask import Approve, Approved, ApproveOptions, approve_request
from perdure.engine.steps.step import StepOperation
from perdure.engine.steps.waits import Child, Receive, Sleep, child_failed, no_message
from perdure.engine.submission import child_job
from perdure.jobs.definition import JobDefinition, Step
from perdure.jobs.model import EntryKind, JournalEntry
from perdure.jobs.registry import job_name, step_name
from perdure.jobs.state import StepState
from perdure.jobs.text_limits import check_given

P = ParamSpec("P")
R = TypeVar("R")

# Enum member lookup is slow on this hot path.
_STEP, _PENDING = EntryKind.STEP, StepState.PENDING


class JobContext:
    """The context of a job: how its code runs steps, waits, and asks people."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<context of job {self.job_id}>"

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._run.job.id

    @property
    def tenant_id(self) -> str:
        """The tenant that the job was submitted for."""
        return self._run.job.tenant

    @property
    def user_id(self) -> str:
        """The user that the job was submitted by."""
        return self._run.job.user

    # Steps

    def run(self, step: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Operation[R]":
        """Run a step, or return its recorded result. Await it, or `gather` several.

        Raises:
            StepFailed: When awaited: the step failed for good.
        """
        return self._step(step, None, args, kwargs)

    def run_as(
        self, key: str, step: Step[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> "Operation[R]":
        """Run a step under a key of your own, for branches whose order is nondeterministic."""
        return self._step(step, key, args, kwargs)

    def _step(
        self, step: Step[Any, R], key: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "Operation[R]":
        run = self._run
        name, is_gated = run.node.known_steps.get(id(step)) or self._step_info(step)
        packed = step.parameters.pack(args, kwargs, run.node.limits)
        identity = run.journal.identity(name, key)
        entry = run.visit(identity, _STEP, packed)
        if entry is None:
            seq = run.journal.next_seq()
            fresh = JournalEntry(
                seq=seq, id=identity, kind=_STEP, name=name, state=_PENDING, input=packed
            )
            operation = StepOperation(run, fresh, step, (args, kwargs), recorded=False)
        else:
            operation = StepOperation(run, entry, step, (args, kwargs), recorded=True)
            operation.replay()
        if is_gated:
            operation.gate, run.gate_passes = run.node.gatekeeper.decide(
                step, name, packed, run.job.tenant, run.gate_passes
            )
        return operation

    def _step_info(self, step: Step[Any, Any]) -> tuple[str, bool]:
        """Return what every call of a step needs (its name, whether it is gated), looked up once.

        Raises:
            TypeError: It is not a step.
            UnknownName: It is not registered.
        """
        node = self._run.node
        name = step_name(node.registry, step, "ctx.run")
        node.known_steps[id(step)] = known = (name, node.gatekeeper.watches(step))
        return known

    @overload
    async def gather(
        self, *operations: Awaitable[R], return_exceptions: Literal[False] = ...
    ) -> list[R]: ...

    @overload
    async def gather(
        self, *operations: Awaitable[R], return_exceptions: Literal[True]
    ) -> list[R | BaseException]: ...

    async def gather(self, *operations: Awaitable[R], return_exceptions: bool = False) -> Any:
        """Run operations concurrently; return their results in the order of the arguments.

        All of them run until they end, then the first failure in that order is raised.
        """
        for operation in operations:
            if not isinstance(operation, Operation):
                raise TypeError(
                    f"gather takes operations such as ctx.run(…), not {operation!r}: "
                    "what is not an operation cannot be replayed"
                )
            operation.begin()
        results: list[Any] = []
        first: Exception | None = None
        for operation in operations:
            try:
                results.append(await operation)
            except Exception as error:  # noqa: BLE001 - kept, and raised in order
                results.append(error)
                first = first or error
        if first is not None and not return_exceptions:
            raise first
        return results

    # People

    def approve(self, title: str, **options: Unpack[ApproveOptions]) -> "Operation[Approved]":
        """Ask a person; the job waits without a worker until somebody has decided.

        An approval lets the next step begin that would wait for one; see `opens`.

        Args:
            title: What it is about, in one line.
            **options: `details`: what people see. `risk`: how dangerous it is ("high").
                `terms`: who must approve. `expires`: how long to wait; overrides the terms.
                `opens`: the steps that an approval lets begin, at every later call.

        Raises:
            ApprovalRejected: When awaited: somebody rejected it.
            ApprovalExpired: When awaited: nobody decided in time.
        """
        run = self._run
        asked = approve_request(run, title, options)
        entry, recorded = self._look_up(EntryKind.APPROVE, "approve", asked.packed)
        if entry.input is None:  # the job is a fork: people are asked again, about what it asks now
            entry = replace(entry, input=asked.packed)
        return Approve(run, entry, asked, recorded=recorded)

    # Waiting

    def sleep(self, duration: Duration) -> "Operation[None]":
        """Wait for a duration. The job needs no worker meanwhile; a restart does not restart it."""
        run = self._run
        length = job_seconds(duration)
        if length is None:
            raise TypeError("sleep needs a duration; to wait for ever, receive a message")
        until = run.now() + length
        entry, recorded = self._look_up(EntryKind.SLEEP, "sleep", encode(length), until)
        operation = Sleep(run, entry, recorded=recorded)
        if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
            operation.finish(None)
        return operation

    def receive(self, topic: str, *, timeout: Duration = None, kind: Any = Any) -> "Operation[Any]":
        """Wait for a message on a topic, sent with `app.send`, and return it.

        Raises:
            StepTimeout: When awaited: none came in time.
        """
        check_given(topic=topic)
        run = self._run
        limit = job_seconds(timeout)
        until = None if limit is None else run.now() + limit
        name = f"receive:{topic}"
        entry, recorded = self._look_up(EntryKind.RECEIVE, name, encode(limit), until)
        if entry.state is _PENDING and entry.wake_at is None and until is not None:
            entry = replace(entry, wake_at=until)  # it is retried, with its full timeout
            run.buffer_entry(entry)
        operation = Receive(run, entry, kind, recorded=recorded)
        if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
            operation.finish(None if entry.output is None else decode(entry.output, kind))
        elif entry.state is StepState.FAILED:
            operation.finish(None, no_message(entry))
        return operation

    def child(
        self, job: "JobDefinition[P, R]", /, *args: P.args, **kwargs: P.kwargs
    ) -> "Operation[R]":
        """Submit another job, wait for it, and return its result.

        Raises:
            JobFailed: When awaited: the job ended without a result.
        """
        run = self._run
        full = job_name(run.node.registry, job, "ctx.child")
        packed = job.parameters.pack(args, kwargs, run.node.limits)
        entry, recorded = self._look_up(EntryKind.CHILD, f"child:{full}", packed)
        submission = child_job(run.job, entry, job, full, packed)
        operation = Child(run, entry, job, submission, recorded=recorded)
        if entry.state in (StepState.SUCCEEDED, StepState.SKIPPED):
            operation.finish(None if entry.output is None else job.result.decode(entry.output))
        elif entry.state is StepState.FAILED:
            operation.finish(None, child_failed(submission.id, entry))
        return operation

    def _look_up(
        self, kind: EntryKind, name: str, packed: bytes, wake_at: float | None = None
    ) -> tuple[JournalEntry, bool]:
        """Return the entry of what the code asks for now, and whether it was in the journal."""
        run = self._run
        id = run.journal.identity(name)
        found = run.visit(id, kind, packed)
        return found or self._fresh(id, kind, name, packed, wake_at), found is not None

    def _fresh(
        self, id: str, kind: EntryKind, name: str, packed: bytes, wake_at: float | None
    ) -> JournalEntry:
        return JournalEntry(
            seq=self._run.journal.next_seq(),
            id=id,
            kind=kind,
            name=name,
            state=StepState.PENDING,
            input=packed,
            wake_at=wake_at,
            started_at=self._run.now(),
        )

    # Time and randomness, the same in every replay

    def now(self) -> datetime:
        """Return the current time; a replay returns the same time."""
        run = self._run
        if run.verdict is not None:  # an entry made now would be at the wrong place in the journal
            raise Unwound
        id = run.journal.identity("now")
        entry = run.visit(id, EntryKind.VALUE, None)
        if entry is None:
            moment = run.now()
            drawn = self._fresh(id, EntryKind.VALUE, "now", b"null", None)
            run.buffer_entry(_drawn(drawn, encode(moment)))
        else:
            moment = decode(cast("bytes", entry.output), float)
        return datetime.fromtimestamp(moment, UTC)

    def uuid(self) -> uuid.UUID:
        """Return a UUID: unpredictable to others, the same in every replay."""
        return uuid.UUID(self._seed("uuid")[:32])

    def random(self) -> random.Random:
        """Return a source of randomness that is the same in every replay. Not for secrets."""
        return random.Random(self._seed("random"))

    def _seed(self, name: str) -> str:
        run = self._run
        root = run.job.forked_from or run.job.id
        return digest(root, run.journal.identity(name))


def _drawn(entry: JournalEntry, output: bytes) -> JournalEntry:
    return JournalEntry(
        seq=entry.seq,
        id=entry.id,
        kind=entry.kind,
        name=entry.name,
        state=StepState.SUCCEEDED,
        output=output,
        started_at=entry.started_at,
        ended_at=entry.started_at,
    )
