"""Durable runs of Microsoft's Agent Framework; needs `perdure[agent-framework]`.

    agent = Agent(client, name="analyst", tools=[…], middleware=durable_middleware())

In the code of a job, each model call and each tool call is then a step. After a crash, the loop of
the framework runs again, and takes recorded results from the journal. Outside a job nothing
changes, and the log has one warning.

People are asked about a tool with `approval_mode="always_require"`, and may edit its arguments. The
job waits and occupies no worker; a rejection goes to the model as the tool's answer. So in a job, a
run does not return with approval requests. `agent.as_tool()` runs in the job, in its own scope.

`PerdureCheckpointStorage(app)` keeps the checkpoints of workflows in the app's store.

Create a session in the code of the job: a replay rebuilds it. Other middleware and context
providers run again at every replay, and must be deterministic.
"""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache
from typing import Any, Final, cast

from pydantic_core import to_jsonable_python

from perdure.app import App
from perdure.base.errors import ApprovalRejected, Refused
from perdure.base.extra import extra
from perdure.client import Client
from perdure.engine.steps.step_context import StepContext
from perdure.engine.working_on import working_on
from perdure.integrations.durable_calls import (
    Message,
    ModelAnswer,
    ModelCall,
    Price,
    ToolOptions,
    ToolRun,
    ask,
    budget_decides,
    emit,
    estimated,
    in_job,
    job,
    key_of,
    message,
    model_call,
    provider_in,
    text_part,
    tool_call,
    tool_call_part,
    tool_response_part,
)
from perdure.jobs.budget import ModelUsage

with extra("agent-framework", "a durable run of the Agent Framework"):
    from agent_framework import (
        AgentContext,
        AgentMiddleware,
        ChatContext,
        ChatMiddleware,
        ChatResponse,
        ChatResponseUpdate,
        CheckpointStorage,
        Content,
        FunctionInvocationContext,
        FunctionMiddleware,
        FunctionTool,
        ResponseStream,
        WorkflowCheckpoint,
        WorkflowCheckpointException,
    )
    from agent_framework._tools import (
        DEFAULT_MAX_ITERATIONS,
        _FunctionArgumentValidationError,  # pyright: ignore[reportPrivateUsage]  no other name
    )
    from agent_framework._workflows._checkpoint_encoding import (
        decode_checkpoint_value,
        encode_checkpoint_value,
    )

ADAPTER: Final = "agent-framework"

CallNext = Callable[[], Awaitable[None]]

_unlimited: ContextVar[bool] = ContextVar("perdure.agent_framework.unlimited", default=False)
_agent: ContextVar[str] = ContextVar("perdure.agent_framework.agent", default="")


def durable_middleware(
    *, tools: Mapping[str, Mapping[str, Any] | bool] | None = None, price: Price | None = None
) -> "list[AgentMiddleware | ChatMiddleware | FunctionMiddleware]":
    """Return the middleware that makes an agent durable in the code of jobs.

    Args:
        tools: Options of tools by name: `{"send": {"effect": True}}`; False runs it in the job's
            code. A tool may also have them in its `additional_properties`, under "perdure".
        price: Returns the USD of a usage, None if unknown; by default by genai-prices.
    """
    options = {name: ToolOptions.of({"perdure": given}) for name, given in (tools or {}).items()}
    return [NamedAgent(), DurableChat(price), DurableFunctions(options)]


class NamedAgent(AgentMiddleware):
    """Tells the model calls which agent makes them."""

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Run the agent."""
        _agent.set(context.agent.name or "")
        client: Any = getattr(context.agent, "client", None)
        config = getattr(client, "function_invocation_configuration", None)
        if config is not None and not isinstance(config, _Limits):
            client.function_invocation_configuration = _Limits(config)
        _unlimited.set(await budget_decides())
        await call_next()


class _Limits(dict[str, Any]):
    """The limits of a client, which has them for all its runs: in a job, a budget may decide."""

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        is_default = key == "max_iterations" and found == DEFAULT_MAX_ITERATIONS
        return sys.maxsize if is_default and _unlimited.get() else found


# Models


class DurableChat(ChatMiddleware):
    """Records the answers of models."""

    def __init__(self, price: Price | None = None) -> None:
        self._price = price

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Call the model in a step, or take the recorded answer."""
        ctx = job(ADAPTER)
        if ctx is None:
            await call_next()
            return
        for tool in _tools_of(context):
            _ask_in_jobs(tool)
        call = self._call(context)

        async def body(step: StepContext) -> ModelAnswer:
            await call_next()
            updates: list[Any] = []
            found: Any = context.result
            if isinstance(found, ResponseStream):
                async for update in cast("AsyncIterator[Any]", found):
                    updates.append(_plain(update))
                    emit(step, updates[-1])
                found = await cast("Any", found).get_final_response()
            value = updates if context.stream else _plain(found)
            return ModelAnswer(
                value=value, usage=_used(call, found), messages=_messages(found.messages)
            )

        value = await model_call(ctx, call, body)
        context.result = _streamed(value) if context.stream else ChatResponse.from_dict(value)

    def _call(self, context: ChatContext) -> ModelCall:
        options = context.options or {}
        model = str(options.get("model") or getattr(context.client, "model", "") or "model")
        history = _messages(context.messages)
        answers = [place for place, each in enumerate(history) if each["role"] == "assistant"]
        length, most = len(str(history)), options.get("max_tokens")
        provider = _provider(context.client, model)
        return ModelCall(
            model=model,
            provider=provider,
            agent=_agent.get(),
            messages=history[answers[-1] + 1 if answers else 0 :],
            estimate=estimated(model, length=length, most_output=most, provider=provider),
            price=self._price,
        )


def _streamed(values: list[Any]) -> ResponseStream[ChatResponseUpdate, ChatResponse]:
    """Return recorded updates as a stream."""

    async def updates() -> AsyncIterator[ChatResponseUpdate]:
        for value in values:
            yield ChatResponseUpdate.from_dict(value)

    return ResponseStream(updates(), finalizer=ChatResponse.from_updates)


def _plain(value: Any) -> Any:
    """Return a response of the framework as plain JSON values."""
    return to_jsonable_python(value.to_dict(), fallback=str)


def _provider(client: Any, model: str) -> str:
    """Return whose model it is, as the client names it in its own telemetry."""
    named = getattr(client, "otel_provider_name", None) or getattr(client, "OTEL_PROVIDER_NAME", "")
    return provider_in(model) if named in ("", "unknown") else str(named)


def _used(call: ModelCall, found: Any) -> ModelUsage:
    used: Mapping[str, Any] = found.usage_details or {}
    return ModelUsage(
        model=call.model,
        provider=call.provider,
        answered_by=found.model or "",
        input_tokens=used.get("input_token_count") or 0,
        output_tokens=used.get("output_token_count") or 0,
        cache_read_tokens=used.get("cache_read_input_token_count") or 0,
        cache_write_tokens=used.get("cache_creation_input_token_count") or 0,
        finish_reason=str(found.finish_reason or ""),
    )


# Tools


class DurableFunctions(FunctionMiddleware):
    """Records what tools have answered, and asks people about those that need it."""

    def __init__(self, options: Mapping[str, ToolOptions] | None = None) -> None:
        self._options = dict(options or {})

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Call the tool in a step, or take the recorded answer."""
        ctx, tool = job(ADAPTER), context.function
        if ctx is None:
            await call_next()
            return
        given, key = _arguments(context), key_of(ctx, context.metadata.get("call_id"))
        if vars(tool).get("approval_mode") == "always_require":
            answer = await ask(ctx, tool.name, given, key=key, description=tool.description)
            if not answer.approved:
                context.result = _refused(answer.reason)
                return
            given = answer.arguments
        options = self._options_of(tool)

        async def body(run: ToolRun) -> Any:
            if run.arguments != _arguments(context):
                context.arguments = run.arguments
            with _refused_arguments():
                await call_next()
            return None if run.step is None else _packed(context.result)

        try:
            found = await tool_call(ctx, tool.name, body, key=key, arguments=given, options=options)
        except ApprovalRejected as no:
            context.result = _refused(no.reason)
            return
        if not options.inline:
            context.result = _unpacked(found)

    def _options_of(self, tool: FunctionTool) -> ToolOptions:
        if (declared := self._options.get(tool.name)) is not None:
            return declared
        if getattr(tool.func, "__name__", "") == "_agent_wrapper":  # what `as_tool` makes
            return ToolOptions(inline=True)
        return ToolOptions.of(tool.additional_properties)


@contextmanager
def _refused_arguments() -> Generator[None, None, None]:
    """Say of wrong arguments of a call that nothing has happened."""
    try:
        yield
    except _FunctionArgumentValidationError as error:
        raise Refused(str(error)) from error


def _arguments(context: FunctionInvocationContext) -> Any:
    return to_jsonable_python(context.arguments, fallback=str)


def _refused(reason: str) -> str:
    return f"The tool call was not approved. {reason}".rstrip()


def _packed(result: Any) -> Any:
    """Return the result of a tool as plain values: contents, or what the framework makes a text."""
    parts = cast("list[Any]", result) if isinstance(result, list) else []
    if parts and all(isinstance(each, Content) for each in parts):
        return {"contents": [to_jsonable_python(each.to_dict()) for each in parts]}
    return {"value": str(cast("object", result))}


def _unpacked(found: Any) -> Any:
    match found:
        case {"contents": contents}:
            return [Content.from_dict(each) for each in contents]
        case {"value": value}:
            return value
        case _:  # a person said what it returned
            return FunctionTool.parse_result(found)


def _tools_of(context: ChatContext) -> list[FunctionTool]:
    found: Any = (context.options or {}).get("tools") or []
    listed = cast("list[Any]", found if isinstance(found, list) else [found])
    return [each for each in listed if isinstance(each, FunctionTool)]


def _ask_in_jobs(tool: FunctionTool) -> None:
    """Let a tool ask in its step when it is called in a job; elsewhere the framework asks."""
    if tool.approval_mode == "always_require":
        tool.__class__ = _asking(type(tool))


@cache
def _asking(kind: type[FunctionTool]) -> type[FunctionTool]:
    """Return a class of tools for which the framework itself asks nobody in a job."""

    def approval_mode(self: Any) -> str:
        held: dict[str, Any] = self.__dict__
        return "never_require" if in_job() else held["approval_mode"]

    def change(self: Any, mode: str) -> None:
        vars(self)["approval_mode"] = mode

    return type(kind.__name__, (kind,), {"approval_mode": property(approval_mode, change)})


# Checkpoints of workflows


class PerdureCheckpointStorage(CheckpointStorage):
    """Keeps the checkpoints of workflows in the store of an app or a client, encrypted if it is."""

    def __init__(
        self,
        app: App | Client,
        *,
        tenant: str = "default",
        allowed_checkpoint_types: Sequence[str] = (),
    ) -> None:
        """Open nothing yet: the store is opened on first use.

        Args:
            app: Whose store it is.
            tenant: Whose checkpoints these are; those of other tenants are not seen.
            allowed_checkpoint_types: Classes of yours in the state of workflows, each as
                "module:name", as for the framework's own `FileCheckpointStorage`.
        """
        self.tenant = tenant
        self._app = app
        self._types = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint, and return its id; inside a step, it counts as progress of the job.

        Raises:
            WorkflowCheckpointException: It could not be loaded again.
        """
        packed = encode_checkpoint_value(checkpoint.to_dict())
        decode_checkpoint_value(packed, allowed_types=self._types)
        at = datetime.fromisoformat(checkpoint.timestamp).timestamp()
        name, id = checkpoint.workflow_name, checkpoint.checkpoint_id
        verbs, work = self._app.verbs, working_on.get()
        await verbs.save_workflow_checkpoint(self.tenant, name, id, at, json.dumps(packed).encode())
        if work is not None and work.step:
            await verbs.prove_progress(work.job, work.worker)
        return id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint.

        Raises:
            WorkflowCheckpointException: There is none with this id.
        """
        found = await self._app.verbs.workflow_checkpoint(self.tenant, checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"there is no checkpoint {checkpoint_id!r}")
        return self._loaded(found)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        found = await self._app.verbs.workflow_checkpoints(self.tenant, workflow_name)
        return [self._loaded(each) for each in found]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one."""
        return await self._app.verbs.delete_workflow_checkpoint(self.tenant, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the newest checkpoint of a workflow; None if it has none."""
        found = await self._app.verbs.newest_workflow_checkpoint(self.tenant, workflow_name)
        return None if found is None else self._loaded(found)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, oldest first."""
        return await self._app.verbs.workflow_checkpoint_ids(self.tenant, workflow_name)

    def _loaded(self, data: bytes) -> WorkflowCheckpoint:
        plain = decode_checkpoint_value(json.loads(data), allowed_types=self._types)
        return WorkflowCheckpoint.from_dict(plain)


# The transcript


def _messages(given: Sequence[Any]) -> list[Message]:
    return [message(str(each.role), *map(_part_of, each.contents)) for each in given]


def _part_of(content: Any) -> Message:
    if content.type == "function_call":
        return tool_call_part(content.call_id or "", content.name, content.parse_arguments())
    if content.type == "function_result":
        return tool_response_part(content.call_id or "", str(content.result))
    if content.type in ("text", "text_reasoning"):
        return text_part(content.text or "", "text" if content.type == "text" else "reasoning")
    return text_part(f"[{content.type}]")
