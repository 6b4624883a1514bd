"""Agents of LangChain in a job: each model call and tool call is a step.

    agent = create_agent(model, tools, middleware=[PerdureMiddleware()])

Put it last in the list of middleware, so that only the call itself is a step, and what others do
around it is replayed. Outside a job it does nothing, and logs one warning.
"""

# LangChain leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, NotRequired, cast

from perdure.base.codec import write_plain
from perdure.base.errors import ApprovalRejected
from perdure.base.extra import extra
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.durable_calls import (
    Message,
    ModelAnswer,
    ModelCall,
    Price,
    ToolOptions,
    ToolRun,
    estimated,
    job,
    key_of,
    message,
    model_call,
    text_part,
    tool_call,
    tool_call_part,
    tool_response_part,
)
from perdure.integrations.langgraph.durable_node import (
    GraphRun,
    OnInterrupt,
    answered,
    config_in_step,
    current_run,
    is_outcome,
    outcome_of,
    place_of,
)
from perdure.integrations.langgraph.plain import dump, load
from perdure.jobs.budget import ModelUsage

with extra("langgraph", "PerdureMiddleware"):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain.tools.tool_node import ToolCallRequest
    from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
    from langchain_core.runnables.config import var_child_runnable_config
    from langgraph.config import get_config

MARK: Final = "perdure_durable"  # a channel that graphs with this middleware have
_ROLES: Final = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}


class DurableAgentState(AgentState[Any]):
    """The state of an agent whose calls are steps; what is added only marks it as such."""

    perdure_durable: NotRequired[Annotated[bool, PrivateStateAttr]]


class PerdureMiddleware(AgentMiddleware[Any, Any, Any]):
    """Makes each model call and tool call a step of the job in which the agent runs."""

    state_schema = DurableAgentState

    def __init__(
        self,
        *,
        agent: str = "",
        price: Price | None = None,
        tools: ToolOptions | None = None,
        on_interrupt: OnInterrupt | None = None,
        stream: str | None = None,
    ) -> None:
        """Describe how calls are made.

        Args:
            agent: The name of the agent, in the journal and in traces.
            price: Returns the USD of a usage, None if unknown; by default by genai-prices.
            tools: How tools are called whose `metadata={"perdure": …}` does not say otherwise.
            on_interrupt: Answers what a tool interrupts itself with, instead of people.
            stream: The topic of live output; without it, and without `run_graph(stream=…)`, there
                is none.
        """
        super().__init__()
        self.agent = agent
        self._price = price
        self._tools = tools
        self._run = GraphRun(on_interrupt, stream)

    # Models

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Call the model in a step; a replay returns what it has answered."""
        ctx = job("langgraph")
        if ctx is None:
            return await handler(request)
        config, topic = get_config(), current_run(self._run).topic

        async def body(step: StepContext) -> ModelAnswer:
            var_child_runnable_config.set(config_in_step(config, step, [], topic))
            response = await handler(request)
            return ModelAnswer(
                value=[dump(response.result), dump(response.structured_response)],
                usage=_usage(call.model, response.result),
                messages=[_told(each) for each in response.result],
            )

        call = self._model_call(ctx, request, place_of(config))
        result, structured = await model_call(ctx, call, body)
        return ModelResponse(result=load(result), structured_response=load(structured))

    def _model_call(
        self, ctx: JobContext, request: ModelRequest[Any], place: tuple[str, ...]
    ) -> ModelCall:
        told = _facts(request.model)
        name = str(told.get("ls_model_name") or told.get("ls_provider") or "model")
        provider = str(told.get("ls_provider") or "")
        given = [*([request.system_message] if request.system_message else []), *request.messages]
        return ModelCall(
            model=name,
            provider=provider,
            agent=self.agent,
            key=key_of(ctx, self.agent, *place),
            messages=[_told(each) for each in _added(given)],
            estimate=estimated(
                name,
                length=sum(len(str(each.content)) for each in given),
                most_output=told.get("ls_max_tokens"),
                provider=provider,
            ),
            price=self._price,
        )

    # Tools

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Call a tool in a step; a replay returns what it has returned."""
        ctx = job("langgraph")
        if ctx is None:
            return await handler(request)
        return await durable_tool(ctx, request, handler, self._tools, current_run(self._run))


async def durable_tool(
    ctx: JobContext,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], Awaitable[Any]],
    default: ToolOptions | None,
    run: GraphRun,
) -> Any:
    """Call a tool in a step, and ask people where it interrupts itself."""
    called, config = request.tool_call, request.runtime.config
    metadata = None if request.tool is None else request.tool.metadata
    options = ToolOptions.of(metadata, default)

    async def work(key: str, answers: list[Any]) -> Any:
        async def body(given: ToolRun) -> Any:
            # The handler calls the tool with this very object.
            config.update(config_in_step(config, given.step, answers, run.topic))
            asked = request.override(tool_call={**called, "args": load(given.arguments)})
            return await outcome_of(handler(asked))

        arguments = dump(called["args"])
        name = called["name"]
        found = await tool_call(ctx, name, body, key=key, arguments=arguments, options=options)
        return found if is_outcome(found) else dump(_said(called, found))

    try:
        return await answered(ctx, (*place_of(config), str(called["id"] or "")), run, work)
    except ApprovalRejected as no:
        why = f": {no.reason}" if no.reason else ""
        return ToolMessage(
            f"{no.person or 'A person'} rejected the call of {called['name']}{why}",
            name=called["name"],
            tool_call_id=called["id"],
            status="error",
        )


def _said(called: ToolCall, found: Any) -> ToolMessage:
    """Return what a tool returned by the word of a person."""
    text = found if isinstance(found, str) else write_plain(found).decode()
    return ToolMessage(text, name=called["name"], tool_call_id=called["id"])


# What models say of themselves


def _facts(model: Any) -> dict[str, Any]:
    found = getattr(model, "_get_ls_params", None)
    return {} if found is None else cast("dict[str, Any]", found())


def _usage(model: str, answer: Sequence[BaseMessage]) -> ModelUsage:
    said = next((each for each in answer if isinstance(each, AIMessage)), None)
    if said is None:
        return ModelUsage(model=model)
    used = cast("dict[str, Any]", said.usage_metadata or {})
    details = cast("dict[str, int]", used.get("input_token_details") or {})
    told = cast("dict[str, Any]", said.response_metadata)
    return ModelUsage(
        model=model,
        input_tokens=used.get("input_tokens", 0),
        output_tokens=used.get("output_tokens", 0),
        cache_read_tokens=details.get("cache_read", 0),
        cache_write_tokens=details.get("cache_creation", 0),
        answered_by=str(told.get("model_name") or ""),
        provider=str(told.get("model_provider") or ""),
        finish_reason=str(told.get("finish_reason") or told.get("stop_reason") or ""),
    )


def _added(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Return what has come since the model has last spoken."""
    last = max((n for n, each in enumerate(messages) if isinstance(each, AIMessage)), default=-1)
    return messages[last + 1 :]


def _told(said: BaseMessage) -> Message:
    """Return a message for the transcript."""
    if isinstance(said, ToolMessage):
        return message("tool", tool_response_part(said.tool_call_id, _text(said)))
    parts = [text_part(text)] if (text := _text(said)) else []
    if isinstance(said, AIMessage):
        parts += [
            tool_call_part(each["id"] or "", each["name"], dump(each["args"]))
            for each in said.tool_calls
        ]
    return message(_ROLES.get(said.type, "user"), *parts)


def _text(said: BaseMessage) -> str:
    content: Any = said.content
    return content if isinstance(content, str) else str(said.text)
