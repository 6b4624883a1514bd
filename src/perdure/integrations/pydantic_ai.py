"""Durable agents of pydantic-ai; needs `perdure[pydantic-ai]`.

    agent = Agent("openai:gpt-5", name="analyst", capabilities=[PerdureDurability(approvals=True)])

    @app.job
    async def research(topic: str) -> str:
        return (await agent.run(topic)).output

The agent's loop runs in the code of the job, and is replayed. Each model call and each tool call is
a step, and so are the discovery of tools and the handling of events. `pydantic_ai.durable_exec`,
the extension point for durable engines, says *what* must be durable (`DurableOperation`), and
`_StepBackend` makes each of these a step, with `perdure.integrations.durable_calls`.

Steps are identified by the run of the agent, and tool calls by their id and retry, so tools run in
parallel, and the order in which they finish does not matter.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, TypeVar, cast

from msgspec.structs import replace as with_fields

from perdure.base.duration import Duration
from perdure.base.errors import ApprovalRejected, Unavailable
from perdure.base.extra import extra
from perdure.engine.journal.verdict import Unwound
from perdure.engine.run.context import JobContext, current_job
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.durable_calls import (
    MCP_KEY,
    MCP_REFUSALS,
    MODEL_TIMEOUT,
    AskAbout,
    Message,
    ModelAnswer,
    ModelCall,
    Price,
    ToolOptions,
    ToolRun,
    allowed,
    ask_all,
    budget_decides,
    emit,
    estimated,
    idempotency_key,
    in_job,
    job,
    key_of,
    letters,
    message,
    model_call,
    text_part,
    tool_call,
    tool_call_part,
    tool_response_part,
)
from perdure.jobs.budget import ModelUsage
from perdure.jobs.policy import leaves

with extra("pydantic-ai", "the adapter for pydantic-ai"):
    from pydantic_ai.agent import AbstractAgent, Agent, EventStreamHandler
    from pydantic_ai.capabilities.abstract import WrapRunHandler
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        BoundDurableOperation,
        DurabilityEngineSpec,
        DurableOperation,
        DurableOperationBackend,
        EventStreamHandlerParams,
        ModelCompactMessagesParams,
        ModelRequestParams,
        ToolsetCallToolId,
        conversation_id_from_run_id,
        durable_unit_scope,
    )
    from pydantic_ai.exceptions import (
        AgentRunError,
        ModelConnectionError,
        ModelHTTPError,
        ModelRateLimitError,
        ModelRequestTimeout,
        ModelRetry,
        ModelServerError,
        ModelUnavailableError,
        UserError,
    )
    from pydantic_ai.messages import (
        AgentStreamEvent,
        ModelMessage,
        ModelRequest,
        ModelResponse,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import Model
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import (
        AgentDepsT,
        DeferredToolRequests,
        DeferredToolResults,
        RunContext,
        ToolApproved,
        ToolDenied,
    )
    from pydantic_ai.usage import UsageLimits
    from pydantic_core import to_jsonable_python

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")

# Those without a status, too: some providers report them inside of a stream.
_OUTAGES: Final = (
    *(ModelRateLimitError, ModelUnavailableError, ModelServerError),
    *(ModelConnectionError, ModelRequestTimeout),
)
_RAISES: Final = (AgentRunError, UserError)

_in_effect: ContextVar[bool] = ContextVar("perdure.pydantic_ai.effect", default=False)
_step: ContextVar[StepContext | None] = ContextVar("perdure.pydantic_ai.step", default=None)


class PerdureDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes the runs of an agent durable in the code of a job.

    Outside a job, the agent runs as if this were not there, and logs one warning.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Perdure",
        durable_unit_noun="step",
        durable_container_noun="job",
        codec=JSON_CODEC,
        tool_config_key="perdure",
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-always",
            "dynamic": "enter-never",
        },
        cancellation_error_types=(Unwound,),
    )

    def __init__(
        self,
        *,
        approvals: bool = False,
        stream: bool = False,
        price: Price | None = None,
        model_timeout: Duration = MODEL_TIMEOUT,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        models: dict[str, Model] | None = None,
    ) -> None:
        """Make the capability, for one agent or several.

        Args:
            approvals: Whether people are asked about tool calls that require approval; otherwise
                such a call ends the run, as usual in pydantic-ai.
            stream: Whether every run streams, with its events emitted as the job's output. A run
                that streams anyway is always emitted.
            price: Returns the USD of a usage; by default from genai-prices.
            model_timeout: The longest time of one attempt at a model call.
            event_stream_handler: Handles events: those of the model live, inside its step, and
                each other event in a step of its own.
            models: Further models for `agent.run(model=…)`, by name.
        """
        super().__init__(models=models, event_stream_handler=event_stream_handler)
        self.approvals = approvals
        self.stream = stream
        self.price = price
        self.model_timeout = model_timeout
        self._backend = _StepBackend(self)

    # What pydantic-ai asks of an engine

    def _bind_to_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        self._backend = _StepBackend(self)  # for this copy, which has the name of its agent
        if isinstance(agent, Agent):
            agent.__class__ = _knowing_its_limits(type(cast("Agent[Any, Any]", agent)))
        super()._bind_to_agent(agent)

    def _build_mcp_toolset(self, toolset: Any) -> Any:
        toolset.process_tool_call = _KeyedCalls(toolset.process_tool_call)
        toolset.__aenter__ = allowed(toolset.__aenter__)  # it connects at every replay
        return super()._build_mcp_toolset(toolset)

    @property
    def in_durable_context(self) -> bool:
        """Whether the code of a job is running."""
        return in_job()

    def get_durable_operation_backend(self) -> "_StepBackend":
        """Return what makes steps."""
        return self._backend

    def get_default_run_id(self) -> str | None:
        """Return an id that is the same in every replay."""
        return str(current_job().uuid()) if in_job() else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id that follows from that of the run."""
        return conversation_id_from_run_id(run_id) if in_job() else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:  # noqa: ARG002 - as given
        """Return when the run began first, from which its `timeout` counts."""
        return current_job().now() if in_job() else None

    async def wrap_run(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        handler: WrapRunHandler,
    ) -> AgentRunResult[Any]:
        """Run the agent, and say if that is not durable."""
        job("PerdureDurability of pydantic-ai")
        if isinstance(ctx.usage_limits, _DefaultLimits) and await budget_decides():
            ctx.usage_limits.request_limit = None
        return await handler()

    # Approvals

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask people about all calls of a turn that require approval; a no goes to the model."""
        if not self.approvals or not in_job() or not requests.approvals:
            return None
        here, calls = current_job(), requests.approvals
        questions = [
            AskAbout(
                tool=call.tool_name,
                arguments=call.args_as_dict(),
                key=key_of(here, "ask", ctx.run_id, call.tool_call_id),
                description=f"{self.name} wants to call {call.tool_name}",
            )
            for call in calls
        ]
        results = DeferredToolResults()
        for call, answer in zip(calls, await ask_all(here, questions), strict=True):
            if answer.approved:
                edited = answer.arguments if answer.arguments != call.args_as_dict() else None
                results.approvals[call.tool_call_id] = ToolApproved(override_args=edited)
            else:
                why = answer.reason or "no reason was given"
                results.approvals[call.tool_call_id] = ToolDenied(f"A person said no: {why}")
        return results

    # Streams

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether the events of a run are wanted, so that the model is asked for a stream."""
        return self.stream or super().has_wrap_run_event_stream

    async def wrap_run_event_stream(
        self, ctx: RunContext[AgentDepsT], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        """Emit what happens beside the model: its tool calls, and their results."""
        async for event in super().wrap_run_event_stream(ctx, stream=stream):
            if in_job() and event.event_kind not in _OF_MODEL:
                emit(current_job(), _event(event))
            yield event

    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT]:
        """Return what handles the events of a model inside its step: each is emitted at once."""
        handler = self._effective_event_stream_handler()

        async def handle(
            ctx: RunContext[AgentDepsT], stream: AsyncIterable[AgentStreamEvent]
        ) -> None:
            events = _emitted(_step.get(), stream)
            if handler is not None:
                await handler(ctx, events)
            async for _ in events:
                pass

        return handle


class _DefaultLimits(UsageLimits):
    """The limits of a run for which its user has set none."""


@cache
def _knowing_its_limits(kind: type[Agent[Any, Any]]) -> type[Agent[Any, Any]]:
    """Return a class of agents whose runs in jobs tell limits by default from those of users."""
    if kind.iter.__module__ == __name__:
        return kind

    def limited(
        self: Any, *args: Any, usage_limits: UsageLimits | None = None, **options: Any
    ) -> Any:
        limits = usage_limits or (_DefaultLimits() if in_job() else None)
        return kind.iter(self, *args, usage_limits=limits, **options)

    return type(kind.__name__, (kind,), {"iter": limited, "__module__": kind.__module__})


_OF_MODEL: Final = frozenset({"part_start", "part_delta", "part_end", "final_result"})


async def _emitted(
    step: StepContext | None, stream: AsyncIterable[AgentStreamEvent]
) -> AsyncIterator[AgentStreamEvent]:
    async for event in stream:
        emit(step, _event(event))
        yield event


def _event(event: Any) -> Any:
    return to_jsonable_python(event, fallback=repr, bytes_mode="base64", inf_nan_mode="null")


# Steps


class _StepBackend(DurableOperationBackend[ToolOptions]):
    """Makes a step of each operation that pydantic-ai wants to be durable."""

    def __init__(self, durability: PerdureDurability[Any]) -> None:
        self._durability = durability

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """Return what runs an operation as a step."""
        return _BoundStep(operation, self._durability)

    def config_for_tool(
        self,
        operation: DurableOperation[Any, Any, Any],
        *,
        tool: Any,
        tool_name: str,  # noqa: ARG002 - as given
    ) -> ToolOptions | Literal[False]:
        """Return the options in the metadata of a tool; for MCP, its hints are the default."""
        metadata: dict[str, Any] = {} if tool is None else tool.tool_def.metadata or {}
        default = ToolOptions(raises=_RAISES)
        if getattr(operation.operation_id, "toolset_kind", "") == "mcp":
            hints: dict[str, Any] = metadata.get("annotations") or {}
            in_doubt = "replay" if hints.get("idempotentHint") else "ask"
            default = with_fields(default, effect=not hints.get("readOnlyHint"), in_doubt=in_doubt)
        return ToolOptions.of(metadata, default)

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Return nothing: steps are made when they are needed."""
        return ()


class _BoundStep(BoundDurableOperation[ParamsT, WireT, ResultT]):
    """Runs one operation as a step; see `BoundDurableOperation`."""

    def __init__(
        self,
        operation: DurableOperation[ParamsT, WireT, ResultT],
        durability: PerdureDurability[Any],
    ) -> None:
        self._operation = operation
        self._durability = durability

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        given = cast("Any", params)
        if isinstance(params, ModelRequestParams | ModelCompactMessagesParams):
            plain = await self._call_model(current_job(), given)
        elif isinstance(self._operation.operation_id, ToolsetCallToolId):
            options = config if isinstance(config, ToolOptions) else ToolOptions(raises=_RAISES)
            if options.inline:
                return await self._call_inline(current_job(), given, options)
            plain = await self._call_tool(current_job(), given, options)
        else:
            plain = await self._call_other(current_job(), given)
        return self._operation.result_codec.load(plain)

    async def _run(self, params: Any) -> Any:
        """Run the operation itself; return its result as plain JSON values."""
        with durable_unit_scope():
            return self._operation.result_codec.dump(await self._operation.handler(params))

    async def _call_model(self, here: JobContext, params: Any) -> Any:
        durability, run = self._durability, cast("RunContext[Any]", params.run_context)
        model = run.model
        if isinstance(params, ModelRequestParams):
            added, before = _added(params.messages)
            settings: dict[str, Any] = {**(params.model_settings or {})}
            # Outages are retried here, and by nobody else.
            once = cast("ModelSettings", {**settings, "max_retries": 0})
            params = replace(params, model_settings=once)
        else:
            added, before, settings = [], 0, {}

        async def body(step: StepContext) -> ModelAnswer:
            token = _step.set(step)
            try:
                with durable_unit_scope():
                    response = await self._operation.handler(params)
            except _OUTAGES as error:
                if isinstance(
                    error, ModelHTTPError
                ):  # its status says so, and that nothing was used
                    raise
                raise Unavailable(
                    f"{type(error).__name__}: {error}", error.retry_after or 0
                ) from error
            finally:
                _step.reset(token)
            return ModelAnswer(
                value=self._operation.result_codec.dump(response),
                usage=_usage(cast("Any", response), call.model),
                messages=[_said(cast("Any", response))],
            )

        guess = estimated(
            model.model_name,
            length=letters(added),
            most_output=settings.get("max_tokens"),
            provider=model.system,
        )
        call = ModelCall(
            model=model.model_name,
            provider=model.system,
            agent=durability.name,
            key=key_of(here, run.run_id, run.run_step),
            messages=added,
            estimate=with_fields(guess, input_tokens=guess.input_tokens + before),
            price=durability.price,
            timeout=durability.model_timeout,
            raises=_RAISES,
        )
        return await model_call(here, call, body)

    async def _call_tool(self, here: JobContext, params: Any, options: ToolOptions) -> Any:
        run = cast("RunContext[Any]", params.ctx)
        given = _event(params.tool_args)
        if run.tool_call_approved:  # people have been asked about exactly this call
            options = with_fields(options, risk="low", irreversible=False)

        async def body(called: ToolRun) -> Any:
            wanted = params
            if called.arguments != given:  # a person has edited them
                wanted = replace(params, tool_args=_validated(params, called.arguments))
            token = _in_effect.set(options.effect)
            try:
                found = await self._run(wanted)
            finally:
                _in_effect.reset(token)
            if options.effect:
                _check_happened(params.name, found)
            return found

        key = key_of(here, run.run_id, run.tool_call_id, run.retry or "")
        try:
            found = await tool_call(
                here, params.name, body, key=key, arguments=given, options=options
            )
        except ApprovalRejected as no:
            return {
                "kind": "tool_return",
                "result": f"A person said no: {no.reason or 'no reason'}",
            }
        if isinstance(found, dict) and "kind" in found:
            return cast("Any", found)
        return {"kind": "tool_return", "result": cast("Any", found)}  # a person said what it was

    async def _call_inline(self, here: JobContext, params: Any, options: ToolOptions) -> Any:
        run = cast("RunContext[Any]", params.ctx)

        async def body(_: ToolRun) -> Any:
            return await self._operation.handler(params)

        key = key_of(here, run.run_id, run.tool_call_id, run.retry or "")
        return await tool_call(here, params.name, body, key=key, arguments={}, options=options)

    async def _call_other(self, here: JobContext, params: Any) -> Any:
        run = cast("RunContext[Any]", getattr(params, "run_context", None) or params.ctx)
        about: Any = getattr(params, "name", "")
        if isinstance(params, EventStreamHandlerParams):
            about = _about_event(params.event)

        async def body() -> Any:
            return await self._run(params)

        id = self._operation.operation_id
        kind = _OTHERS.get(type(id).__name__, "other")
        where = getattr(id, "toolset_id", "") or getattr(id, "capability_id", "")
        key = key_of(here, run.run_id, run.run_step, where, run.tool_call_id, about)
        return await here.call(kind, body, key=key, raises=_RAISES)


class _KeyedCalls:
    """Calls tools of an MCP server with their keys; see `ProcessToolCallback` of pydantic-ai.

    pydantic-ai asks the model for another call if the connection was lost in the middle of one. But
    an effect may have happened then.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner.inner if isinstance(inner, _KeyedCalls) else inner

    @property
    def inner(self) -> Any:
        """What the user has set."""
        return self._inner

    async def __call__(self, ctx: Any, call_tool: Any, name: str, args: dict[str, Any]) -> Any:
        async def call(
            name: str, args: dict[str, Any], *, metadata: dict[str, Any] | None = None
        ) -> Any:
            key = idempotency_key()
            meta = {**(metadata or {}), MCP_KEY: key} if key else metadata
            try:
                return await call_tool(name, args, metadata=meta)
            except ModelRetry as error:
                if _in_effect.get() and _leaves_doubt(error.__cause__):
                    raise ConnectionError(str(error)) from error
                raise

        if self._inner is None:
            return await call(name, args)
        return await self._inner(ctx, call, name, args)


def _leaves_doubt(cause: BaseException | None) -> bool:
    """Whether an error of the protocol, unlike one of the tool, says nothing about the call."""
    found = [] if cause is None else list(leaves(cause))
    codes = [getattr(each, "code", None) for each in found if hasattr(each, "code")]
    return any(code not in MCP_REFUSALS for code in codes)


# How the steps of other operations are named.
_OTHERS: Final = {
    "ToolsetGetToolsId": "tools",
    "ToolsetGetInstructionsId": "instructions",
    "ToolsetValidateToolArgumentsId": "validate",
    "EventStreamHandlerId": "event",
    "CapabilityOperationId": "capability",
    "ModelCancelSuspendedResponseId": "cancel_response",
}


def _about_event(event: Any) -> str:
    part = getattr(event, "part", None) or getattr(event, "result", None)
    return f"{event.event_kind}.{getattr(part, 'tool_call_id', '')}"


def _check_happened(tool: str, found: Any) -> None:
    """Raise what pydantic-ai would tell the model, if an effect may have happened nevertheless.

    Its timeout of a tool asks the model for another call, and so does an error of validation inside
    of the tool: that of an answer of its receiver, for example.

    Raises:
        TimeoutError: The call took too long.
        ValueError: The tool has raised an error of validation.
    """
    kind, said = found.get("kind"), str(found.get("message", ""))
    if kind == "model_retry" and said.startswith("Timed out after "):
        raise TimeoutError(said)
    if kind == "validation_error" and found["title"] != tool:
        raise ValueError(f"{found['title']}: {found['errors']}")


def _validated(params: Any, arguments: Any) -> dict[str, Any]:
    """Return edited arguments as the values that the tool takes."""
    tool = getattr(params, "tool", None)
    return arguments if tool is None else tool.args_validator.validate_python(arguments)


# The transcript


def _added(messages: list[ModelMessage]) -> tuple[list[Message], int]:
    """Return what a call adds to the history, and how many tokens those before it have."""
    added: list[Message] = []
    for each in reversed(messages):
        if isinstance(each, ModelResponse):
            return added, each.usage.input_tokens + each.usage.output_tokens
        added[:0] = _asked(each)
    return added, 0


def _asked(request: ModelRequest) -> list[Message]:
    found = [message("system", text_part(request.instructions))] if request.instructions else []
    for part in request.parts:
        content = _event(getattr(part, "content", ""))
        if isinstance(part, ToolReturnPart):
            found.append(message("tool", tool_response_part(part.tool_call_id, content)))
        else:
            role = "user" if isinstance(part, UserPromptPart) else "system"
            found.append(message(role, text_part(_text(content))))
    return found


def _said(response: ModelResponse) -> Message:
    parts: list[Message] = []
    for part in response.parts:
        match part:
            case TextPart():
                parts.append(text_part(part.content))
            case ThinkingPart():
                parts.append(text_part(part.content, "reasoning"))
            case ToolCallPart():
                arguments = _event(part.args)
                parts.append(tool_call_part(part.tool_call_id, part.tool_name, arguments))
            case _:
                parts.append(text_part(_text(_event(part))))
    return message("assistant", *parts)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else str(content)


def _usage(response: ModelResponse, model: str) -> ModelUsage:
    used = response.usage
    return ModelUsage(
        model=model,
        provider=response.provider_name or "",
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        answered_by=response.model_name or "",
        finish_reason=response.finish_reason or "",
    )
