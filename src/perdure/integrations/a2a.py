"""A job as an agent that others reach by A2A, the agent-to-agent protocol; needs `perdure[a2a]`.

    agent = PerdureAgent(app, research, who=who)
    handler = DefaultRequestHandler(agent, agent.tasks, card)      # of the A2A SDK

A task is a job, and everything a client learns about it is read from the job, so it is the same
after a restart, and on every server. What the job emits is an artifact that grows; its result is
another one. An approval, and a wait for a message from the user, are `input-required`, which the
client's next message answers.

Tenant and person come only from `who`. A task belongs to the person who started it; for everybody
else it does not exist.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, cast

from msgspec import Struct

from perdure.app import App
from perdure.base.codec import read_plain, write_plain
from perdure.base.errors import ArgumentError, DecisionRefused, IllegalTransition
from perdure.base.extra import extra
from perdure.base.retry import idle
from perdure.engine.handle import approvals_in
from perdure.jobs.approval import Approval, Person, VoteVerdict, why_not
from perdure.jobs.definition import JobDefinition
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job, JobQuery
from perdure.jobs.output import DEFAULT_TOPIC, OutputPiece
from perdure.jobs.state import ENDED, JobState

with extra("a2a", "A2A"):
    from a2a.helpers.proto_helpers import get_data_parts, new_data_part, new_text_part
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.context import ServerCallContext
    from a2a.server.events import EventQueue
    from a2a.server.tasks import TaskStore, TaskUpdater
    from a2a.types.a2a_pb2 import (
        Artifact,
        ListTasksRequest,
        ListTasksResponse,
        Message,
        Part,
        Role,
        Task,
        TaskState,
        TaskStatus,
    )
    from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError

Who: TypeAlias = Callable[[ServerCallContext], Person | Awaitable[Person | None] | None]
Arguments: TypeAlias = Callable[[RequestContext], dict[str, Any]]

USER_TOPIC: Final = "user"  # of messages that the job receives: `await ctx.receive("user")`
RESULT: Final = "result"  # the artifact with the result of the job
PAGE: Final = 50  # tasks of a list, unless it says otherwise
_LOOK_EVERY: Final = 0.1  # seconds
_CONTEXT: Final = "a2a.context"
_AGENT: Final = "a2a.agent"
_YES: Final = frozenset({"yes", "y", "ok", "approve", "approved"})
_NO: Final = frozenset({"no", "n", "reject", "rejected", "decline"})


class PerdureAgent(AgentExecutor):
    """A job that answers the messages of A2A clients.

    Attributes:
        tasks: The tasks of this agent, for the request handler of the SDK.
    """

    def __init__(
        self,
        app: App,
        job: JobDefinition[..., Any],
        *,
        who: Who,
        arguments: Arguments | None = None,
        topic: str = DEFAULT_TOPIC,
    ) -> None:
        """Describe the agent; the store of the app is opened at the first request.

        Args:
            app: The app, whose workers may run anywhere.
            job: The job; by default it takes one argument, the text of the first message.
            who: Returns who asks, by what the server has authenticated; None refuses them.
            arguments: Returns the arguments of the job for a request, by name.
            topic: What the job emits on this topic is passed on while it runs.
        """
        self._app = app
        self._job = job
        self._arguments = arguments
        self._topic = topic
        self.tasks = JobTasks(app, job.name, who)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Begin a job for a first message, or answer one; then pass on what it emits."""
        person = await self.tasks.person(context.call_context)
        task_id, context_id = context.task_id or "", context.context_id or ""
        updater = TaskUpdater(event_queue, task_id, context_id)
        job, answered = await self.tasks.job(task_id, person), frozenset[str]()
        if job is None:
            job = await self._begin(context, person)
            await event_queue.enqueue_event(_task(job, TaskState.TASK_STATE_SUBMITTED))
        else:
            answered = await self._answer(job, person, context)
        await self._follow(job.id, person, updater, answered)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel the job, and say when it has ended."""
        person = await self.tasks.person(context.call_context)
        job = await self.tasks.job(context.task_id or "", person)
        if job is None:
            raise TaskNotFoundError
        handle = await self._app.handle(job.id)
        try:
            await handle.cancel("asked for by A2A", by=person.id)
        except IllegalTransition as error:
            raise TaskNotCancelableError(str(error)) from None
        await handle.wait()
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await _tell_end(await handle.job(), updater)

    async def _begin(self, context: RequestContext, person: Person) -> Job:
        if self._arguments is None:
            call = self._job(context.get_user_input())
        else:
            call = self._job(**self._arguments(context))
        try:
            handle = await self._app.submit(
                call,
                tenant=person.tenant,
                user=person.id,
                key=_key(context.task_id or ""),
                labels={_AGENT: self._job.name, _CONTEXT: context.context_id or ""},
            )
        except ArgumentError as error:
            raise InvalidParamsError(str(error)) from None
        return await handle.job()

    async def _answer(self, job: Job, person: Person, context: RequestContext) -> frozenset[str]:
        """Pass a message to the question that a job asks, or else to the job.

        Returns:
            What the job has waited for and now has, although it may not have noticed yet.
        """
        text, message = context.get_user_input(), context.message
        approval = await self.tasks.question(job, person)
        if approval is not None:
            verdict = _verdict(text, message)
            if verdict is not None:
                try:
                    await self._app.decide(approval, verdict[0], by=person, reason=verdict[1])
                except DecisionRefused as refused:
                    raise InvalidParamsError(str(refused)) from None
        elif message is not None and job.state not in ENDED:
            await self._app.send(job.id, USER_TOPIC, text, key=message.message_id or None)
            return frozenset(_waits_for_user(job))
        return frozenset()

    async def _follow(
        self, job_id: str, person: Person, updater: TaskUpdater, answered: frozenset[str]
    ) -> None:
        """Pass on what a job emits, until it has ended or asks for something."""
        verbs, output, after = self._app.verbs, _Output(), 0
        while True:
            job = await verbs.job(job_id)  # before its output: that is complete when it has ended
            page = await verbs.output(job_id, self._topic, after)
            for piece in page.pieces:
                after = piece.position
                await output.pass_on(piece, updater, self._topic)
            if page.pieces:
                continue
            if job is None or job.state in ENDED:
                await _tell_end(job, updater)
                return
            asked = await self.tasks.asked(job, person, answered)
            if asked:
                await updater.requires_input(updater.new_agent_message([new_text_part(asked)]))
                return
            await idle(_LOOK_EVERY)


class JobTasks(TaskStore):
    """The tasks of an agent, as the A2A SDK asks for them: each is read from its job."""

    def __init__(self, app: App, name: str, who: Who) -> None:
        self._app = app
        self._name = name
        self._who = who

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Do nothing: the job is the task."""

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task of the person who asks; None for any other."""
        person = await self.person(context)
        job = await self.job(task_id, person)
        return None if job is None else await self._told(job, person)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return the tasks of the person who asks, the newest first."""
        person = await self.person(context)
        labels = {_AGENT: self._name}
        if params.context_id:
            labels[_CONTEXT] = params.context_id
        size = params.page_size or PAGE
        before = json.loads(params.page_token) if params.page_token else None
        query = JobQuery(
            tenant=person.tenant,
            user=person.id,
            labels=labels,
            limit=size,
            before=None if before is None else (before[0], before[1]),
        )
        jobs = await self._app.find_jobs(query)
        last = json.dumps([jobs[-1].created_at, jobs[-1].id]) if len(jobs) == size else ""
        tasks = [await self._told(job, person) for job in jobs]
        return ListTasksResponse(tasks=tasks, next_page_token=last, page_size=size)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Do nothing: jobs are deleted by retention, and not by those who ask for them."""

    # Who asks, and about what

    async def person(self, context: ServerCallContext) -> Person:
        """Return who asks.

        Raises:
            InvalidParamsError: Nobody knows.
        """
        found = self._who(context)
        person = await found if inspect.isawaitable(found) else found
        if person is None:
            raise InvalidParamsError("the server does not know who you are")
        return person

    async def job(self, task_id: str, person: Person) -> Job | None:
        """Return the job of a task that this person has begun; None if there is none."""
        query = JobQuery(
            tenant=person.tenant, user=person.id, key=_key(task_id), labels={_AGENT: self._name}
        )
        return next(iter(await self._app.find_jobs(query)), None)

    async def question(self, job: Job, person: Person) -> Approval | None:
        """Return the first question that a job asks and this person may answer."""
        now = await self._app.verbs.now()
        for each in approvals_in(job.wait or b"[]"):
            approval = await self._app.verbs.approval(each.approval)
            if approval is not None and why_not(approval, person, now) is None:
                return approval
        return None

    async def asked(self, job: Job, person: Person, answered: frozenset[str] = frozenset()) -> str:
        """Return what a job wants from this person, in words; empty if nothing."""
        approval = await self.question(job, person)
        if approval is not None:
            lines = (approval.title, approval.description, approval.shown.decode())
            return "\n".join([*filter(None, lines), "Answer yes or no, and why."])
        return "I wait for your answer." if _waits_for_user(job) - answered else ""

    async def _told(self, job: Job, person: Person) -> Task:
        asked = "" if job.state in ENDED else await self.asked(job, person)
        state = TaskState.TASK_STATE_INPUT_REQUIRED if asked else _state(job)
        told = _task(job, state)
        if text := asked or _why(job):
            told.status.message.CopyFrom(_message(told, text))
        if job.state is JobState.COMPLETED:
            told.artifacts.append(Artifact(artifact_id=RESULT, name=RESULT, parts=[_result(job)]))
        return told


class _Piece(Struct):
    position: int
    step: str
    text: str


class _Output:
    """What a job has emitted so far, as an artifact that grows."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []

    async def pass_on(self, piece: OutputPiece, updater: TaskUpdater, topic: str) -> None:
        """Pass a piece on; a repeated attempt replaces what the one before has emitted."""
        if piece.kind == "dropped":
            return
        if piece.kind == "reset":
            self._pieces = [each for each in self._pieces if not _is_void(each, piece)]
        else:
            text = piece.value if isinstance(piece.value, str) else _json(piece.value)
            self._pieces.append(_Piece(piece.position, piece.step, text))
        grows = piece.kind == "value" and len(self._pieces) > 1
        shown = self._pieces[-1:] if grows else self._pieces
        if shown:
            parts = [new_text_part(each.text) for each in shown]
            await updater.add_artifact(parts, artifact_id=topic, name=topic, append=grows)


def _is_void(each: _Piece, reset: OutputPiece) -> bool:
    return each.step == reset.step and each.position >= (reset.discards or 0)


def _key(task_id: str) -> str:
    return f"a2a {task_id}"


def _json(value: Any) -> str:
    return write_plain(value).decode()


# States

_STATES: Final = {
    JobState.PENDING: TaskState.TASK_STATE_SUBMITTED,
    JobState.COMPLETED: TaskState.TASK_STATE_COMPLETED,
    JobState.CANCELLED: TaskState.TASK_STATE_CANCELED,
    JobState.FAILED: TaskState.TASK_STATE_FAILED,
    JobState.COMPENSATED: TaskState.TASK_STATE_FAILED,
}


def _state(job: Job) -> TaskState:
    return _STATES.get(job.state, TaskState.TASK_STATE_WORKING)


def _task(job: Job, state: TaskState) -> Task:
    id = (job.key or "").removeprefix(_key(""))
    told = Task(id=id, context_id=job.labels.get(_CONTEXT, ""), status=TaskStatus(state=state))
    moment = job.ended_at or job.started_at or job.created_at
    told.status.timestamp.FromMicroseconds(int(moment * 1_000_000))
    return told


def _why(job: Job) -> str:
    """Return why a job has failed; empty if it has not."""
    if job.error is None or job.state is JobState.COMPLETED:
        return ""
    return f"the job is {job.state.value}: {Failure.unpack(job.error).summary()}"


def _message(task: Task, text: str) -> Message:
    return Message(
        role=Role.ROLE_AGENT,
        message_id=f"{task.id}.{task.status.state}",
        task_id=task.id,
        context_id=task.context_id,
        parts=[new_text_part(text)],
    )


def _result(job: Job) -> Part:
    value = read_plain(job.result or b"null")
    return new_text_part(value) if isinstance(value, str) else new_data_part(value)


async def _tell_end(job: Job | None, updater: TaskUpdater) -> None:
    """Tell how a job has ended; None if somebody has deleted it."""
    if job is None:
        await updater.failed()
        return
    if job.state is JobState.COMPLETED:
        await updater.add_artifact([_result(job)], artifact_id=RESULT, name=RESULT)
    why = _why(job)
    message = updater.new_agent_message([new_text_part(why)]) if why else None
    await updater.update_status(_state(job), message)


# Answers


def _waits_for_user(job: Job) -> set[str]:
    """Return the waits of a job for messages of the user."""
    waits = cast("list[dict[str, Any]]", read_plain(job.wait or b"[]"))
    return {each["id"] for each in waits if each.get("topic") == USER_TOPIC}


def _verdict(text: str, message: Message | None) -> tuple[VoteVerdict, str] | None:
    """Return what a person has decided, and why; None if that cannot be told."""
    for data in get_data_parts(message.parts) if message is not None else ():
        if isinstance(data, dict) and "approve" in data:
            found = cast("dict[str, Any]", data)
            return "approve" if found["approve"] is True else "reject", str(found.get("reason", ""))
    word, _, reason = text.strip().partition(" ")
    word = word.lower().strip(",.:;!")
    if word in _YES | _NO:
        return "approve" if word in _YES else "reject", reason.strip()
    return None
