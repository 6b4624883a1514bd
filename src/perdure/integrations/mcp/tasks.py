"""Jobs and approvals as the tasks of an MCP server, by the extension of SEP-2663.

    def who(ctx: ServerRequestContext) -> Person:
        token = get_access_token()                    # as the server has authenticated it
        return Person(id=token.subject, tenant="acme", roles=frozenset({"approver"}))

    server = MCPServer("jobs", extensions=[PerdureTasks(app, who=who)])

Each job is a tool. A client that supports tasks gets the id of the job at once, and polls it with
`tasks/get`, from anywhere and after any restart; any other client waits for the result. An approval
is an elicitation in the task, which `tasks/update` answers; `tasks/cancel` cancels the job.

Tenant and person come only from `who`. A task belongs to the person who started it; for everybody
else it does not exist.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    GetTaskRequestParams,
    RequestParams,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError, WithJsonSchema

from perdure.app import App
from perdure.base.codec import read_plain, write_plain
from perdure.base.errors import ArgumentError, DecisionRefused, IllegalTransition, Unstorable
from perdure.engine.handle import approvals_in
from perdure.integrations.mcp.client import IDEMPOTENCY_KEY
from perdure.jobs.approval import Approval, Person, why_not
from perdure.jobs.definition import JobDefinition
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job
from perdure.jobs.state import ENDED, JobState
from perdure.jobs.tool import Tools, call_of

EXTENSION: Final = "io.modelcontextprotocol/tasks"

RequestContext: TypeAlias = ServerRequestContext[Any, Any]
Who: TypeAlias = Callable[[RequestContext], Person | Awaitable[Person | None] | None]

_WAITS: Final = "it waits for a person"
_UNKNOWN: Final = "there is no such task"
_SEEN: Final = 16  # characters of the hash of an action, in the key of a question


class UpdateTaskParams(RequestParams):
    """What `tasks/update` takes."""

    task_id: str
    input_responses: dict[str, Any]


class PerdureTasks(Extension):
    """Jobs of an app as tools and tasks of an MCP server."""

    identifier = EXTENSION

    def __init__(
        self,
        app: App,
        *,
        who: Who,
        jobs: Iterable[JobDefinition[..., Any]] | None = None,
        poll_ms: int = 1000,
    ) -> None:
        """Describe the extension; the store of the app is opened at the first request.

        Args:
            app: The app, whose workers may run anywhere.
            who: Returns who asks, by what the server has authenticated; None refuses them. The jobs
                are submitted for this person and tenant, and approvals decided by them.
            jobs: The jobs that are tools; all of the app by default.
            poll_ms: How often clients should ask, in milliseconds.
        """
        self._app = app
        self._who = who
        self._poll_ms = poll_ms
        chosen = app.jobs.values() if jobs is None else jobs
        self._tools = Tools(chosen)
        self._jobs = dict(zip(self._tools.names, chosen, strict=True))

    def tools(self) -> Sequence[ToolBinding]:
        """Return a tool for each job."""
        return [_binding(told) for told in self._tools.schemas("mcp")]

    def methods(self) -> Sequence[MethodBinding]:
        """Return the requests about tasks."""
        modern = frozenset(MODERN_PROTOCOL_VERSIONS)
        return [
            MethodBinding("tasks/get", GetTaskRequestParams, self._get, modern),
            MethodBinding("tasks/update", UpdateTaskParams, self._update, modern),
            MethodBinding("tasks/cancel", GetTaskRequestParams, self._cancel, modern),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: RequestContext, call_next: CallNext
    ) -> HandlerResult:
        """Submit a job for the call of its tool; other tools are called as ever."""
        job = self._jobs.get(params.name)
        if job is None:
            return await call_next(ctx)
        person = await self._person(ctx)
        key = (ctx.meta or {}).get(IDEMPOTENCY_KEY)
        try:
            handle = await self._app.submit(
                call_of(job, params.arguments or {}),
                tenant=person.tenant,
                user=person.id,
                key=None if key is None else f"mcp {person.id} {key}",
            )
        except (ArgumentError, Unstorable) as error:
            return _failed(str(error))
        if _knows_tasks(ctx):
            return {**self._seed(await handle.job()), "resultType": "task"}
        await handle.wait()
        return _result(await handle.job())

    async def _get(self, ctx: RequestContext, params: GetTaskRequestParams) -> HandlerResult:
        job, person = await self._own(ctx, params.task_id)
        seed = self._seed(job)
        if job.state is JobState.CANCELLED:
            return {**seed, "status": "cancelled"}
        if job.state in ENDED:
            result = _result(job).model_dump(mode="json", by_alias=True, exclude_none=True)
            return {**seed, "status": "completed", "result": result}
        asked = await self._asked(job)
        mine = {_key(each): _request(each) for each in asked if await self._may(each, person)}
        if mine:
            return {**seed, "status": "input_required", "inputRequests": mine}
        return {**seed, "statusMessage": _message(job, asked)}

    async def _update(self, ctx: RequestContext, params: UpdateTaskParams) -> HandlerResult:
        job, person = await self._own(ctx, params.task_id)
        for approval in await self._asked(job):
            answer = _answer(params.input_responses.get(_key(approval)))
            if answer is None:
                continue
            verdict, reason = answer
            try:
                await self._app.decide(approval, verdict, by=person, reason=reason)
            except DecisionRefused as refused:
                raise MCPError(INVALID_PARAMS, str(refused)) from None
        return {}

    async def _cancel(self, ctx: RequestContext, params: GetTaskRequestParams) -> HandlerResult:
        job, person = await self._own(ctx, params.task_id)
        handle = await self._app.handle(job.id)
        try:
            await handle.cancel("asked for by MCP", by=person.id)
        except IllegalTransition:  # it has ended: a cancel only says what one would like
            return {}
        return {}

    # Who asks, and about what

    async def _person(self, ctx: RequestContext) -> Person:
        found = self._who(ctx)
        person = await found if inspect.isawaitable(found) else found
        if person is None:
            raise MCPError(INVALID_REQUEST, "the server does not know who you are")
        return person

    async def _own(self, ctx: RequestContext, task: str) -> tuple[Job, Person]:
        """Return a job of the person who asks, and that person."""
        person = await self._person(ctx)
        job = await self._app.verbs.job(task)
        if job is None or (job.tenant, job.user) != (person.tenant, person.id):
            raise MCPError(INVALID_PARAMS, _UNKNOWN)
        return job, person

    async def _asked(self, job: Job) -> list[Approval]:
        """Return the questions that a job waits for."""
        ids = [each.approval for each in approvals_in(job.wait or b"[]")]
        found = [await self._app.verbs.approval(id) for id in ids]
        return [each for each in found if each is not None]

    async def _may(self, approval: Approval, person: Person) -> bool:
        return why_not(approval, person, await self._app.verbs.now()) is None

    def _seed(self, job: Job) -> dict[str, Any]:
        """Return what all states of a task have in common."""
        return {
            "taskId": job.id,
            "status": "working",
            "createdAt": _time(job.created_at),
            "lastUpdatedAt": _time(job.ended_at or job.started_at or job.created_at),
            "ttlMs": None,
            "pollIntervalMs": self._poll_ms,
        }


def _binding(told: Mapping[str, Any]) -> ToolBinding:
    """Return a tool that is only listed: its calls are intercepted."""

    async def call(**_: Any) -> None:
        raise NotImplementedError

    schema = told["inputSchema"]
    needed = set(schema.get("required", ()))
    call.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in needed else each.get("default"),
                annotation=Annotated[Any, WithJsonSchema(each)],
            )
            for name, each in schema.get("properties", {}).items()
        ]
    )
    about = {"name": told["name"], "description": told["description"]}
    return ToolBinding(call, kwargs={**about, "structured_output": False})


def _knows_tasks(ctx: RequestContext) -> bool:
    """Whether the client can take a task instead of a result."""
    capabilities = ctx.session.client_capabilities
    declared = None if capabilities is None else capabilities.extensions
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (declared or {})


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def _message(job: Job, asked: Sequence[Approval]) -> str:
    """Return in a few words what a job does now."""
    if asked:
        return f"{_WAITS}: {asked[0].title}"
    if job.state is JobState.NEEDS_ATTENTION:
        return _WAITS
    notes = [each.note for each in job.progress if each.note]
    return notes[0] if notes else job.state.value.lower()


# Results


def _result(job: Job) -> CallToolResult:
    """Return what a tool returns that is a job which has ended."""
    if job.state is not JobState.COMPLETED or job.result is None:
        why = "" if job.error is None else f": {Failure.unpack(job.error).summary()}"
        return _failed(f"the job is {job.state.value}{why}")
    value = read_plain(job.result)
    text = value if isinstance(value, str) else write_plain(value).decode()
    structured = cast("Any", value if isinstance(value, dict) else {"result": value})
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured
    )


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


# Questions


def _key(approval: Approval) -> str:
    """Return the key of a question: an answer counts for the action that was seen, and no other."""
    return f"{approval.id}.{approval.action.hash[:_SEEN]}"


def _request(approval: Approval) -> dict[str, Any]:
    """Return a question to people as an elicitation."""
    lines = [approval.title, approval.description, approval.shown.decode()]
    risk = f"Risk: {approval.risk}. {' '.join(approval.reasons)}".strip()
    asked = ElicitRequest(
        params=ElicitRequestFormParams(
            message="\n".join(line for line in (*lines, risk) if line),
            requested_schema={
                "type": "object",
                "properties": {
                    "approve": {"type": "boolean", "title": "Approve exactly this"},
                    "reason": {"type": "string", "title": "Why, or why not"},
                },
                "required": ["approve"],
            },
        )
    )
    return asked.model_dump(mode="json", by_alias=True, exclude_none=True)


def _answer(given: Any) -> tuple[Any, str] | None:
    """Return the verdict and the reason; None if somebody has only looked at the question.

    Raises:
        MCPError: This is no answer to an elicitation.
    """
    if given is None:
        return None
    try:
        result = ElicitResult.model_validate(given)
    except ValidationError:
        raise MCPError(INVALID_PARAMS, "an approval is answered as an elicitation") from None
    content = result.content or {}
    if result.action == "cancel":
        return None
    is_yes = result.action == "accept" and content.get("approve") is True
    return "approve" if is_yes else "reject", str(content.get("reason") or "")
