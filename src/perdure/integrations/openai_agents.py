"""Durable runs of the OpenAI Agents SDK; needs `perdure[openai-agents]`.

    install()

    @app.job(budget=BudgetLimits(usd=2))
    async def research(question: str) -> str:
        result = await Runner.run(analyst, question)
        return result.final_output

In the code of a job, `Runner.run` and `Runner.run_streamed` then work on durable copies of the
agents: each model call, each tool call, each list of an MCP server's tools and each access to a
session is a step. After a crash, the SDK's loop runs again, and takes recorded results from the
journal. Outside a job nothing changes, and the log has one warning.

People are asked about a tool with `needs_approval`, and may edit its arguments. The job waits and
occupies no worker; a rejection goes to the model as the tool's answer. So a run never returns with
interruptions of function tools. Agents as tools run in the code of the job, in their own scope.

Instructions, hooks, guardrails and filters that are functions run again at every replay, and must
be deterministic. A replay does not repeat what a tool changed in the context of the run: let the
tool return a value instead.
"""

import copy
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, TypeVar, cast, get_args
from weakref import WeakKeyDictionary

from msgspec.structs import replace as struct_replace
from pydantic import BaseModel, TypeAdapter

from perdure.base.errors import ApprovalRejected, DefinitionError, Refused
from perdure.base.extra import extra
from perdure.base.retry import pause
from perdure.engine.run.context import JobContext, declared_limits
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.durable_calls import (
    MODEL_TIMEOUT,
    Message,
    ModelAnswer,
    ModelBody,
    ModelCall,
    Price,
    ToolOptions,
    ToolRun,
    ask,
    budget_decides,
    emit,
    estimated,
    job,
    key_of,
    message,
    model_call,
    options_by_hints,
    provider_in,
    text_part,
    tool_call,
    tool_call_part,
    tool_response_part,
)
from perdure.integrations.openai_local_tools import (
    ADAPTER,
    OPTIONS,
    durable_local_tool,
    refused,
)
from perdure.jobs.budget import ModelUsage
from perdure.jobs.policy import is_outage

with extra("openai-agents", "a durable run of the OpenAI Agents SDK"):
    from agents import (
        Agent,
        AgentsException,
        FunctionTool,
        Handoff,
        Model,
        ModelBehaviorError,
        ModelProvider,
        ModelResponse,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        RunConfig,
        RunContextWrapper,
        Runner,
        RunResult,
        RunResultStreaming,
        RunState,
        SessionABC,
        Tool,
        TResponseInputItem,
    )
    from agents.mcp import MCPServer
    from agents.memory import Session, SessionSettings
    from agents.models._retry_runtime import provider_managed_retries_disabled
    from agents.run import DEFAULT_MAX_TURNS, AgentRunner, set_default_agent_runner
    from agents.tool import (
        invoke_function_tool,
        maybe_invoke_function_tool_failure_error_function,
        set_function_tool_failure_error_function,
    )
    from agents.tool_context import ToolContext
    from mcp.types import Tool as MCPTool
    from openai import APIError, AsyncAzureOpenAI
    from openai.types.responses import ResponseStreamEvent

AnyTool = TypeVar("AnyTool", bound=Tool)
T = TypeVar("T")

RAISES: Final = (AgentsException, APIError)  # they come back as their own type

# The runner


def install(
    *, tools: Mapping[str, Mapping[str, Any] | bool] | None = None, price: Price | None = None
) -> None:
    """Make the SDK's own `Runner` durable in the code of jobs.

    Args:
        tools: Options of tools by name, for those that cannot be declared with `durable`, such as
            those of MCP servers: `{"send": {"effect": True}}`; False runs it in the job's code.
        price: Returns the USD of a usage, None if unknown; by default by genai-prices.
    """
    options = {name: ToolOptions.of({"perdure": given}) for name, given in (tools or {}).items()}
    for run in (Runner.run, Runner.run_streamed):
        _mark_default(cast("Any", run).__func__)
    set_default_agent_runner(DurableRunner(options, price))


class _DefaultTurns(int):
    """The limit of turns of a run for which its user has set none."""


def _mark_default(run: Any) -> None:
    """Make a method's own limit of turns one that can be told from the same limit by a user."""
    marked = _DefaultTurns(DEFAULT_MAX_TURNS)
    if "max_turns" in (run.__kwdefaults__ or ()):
        run.__kwdefaults__["max_turns"] = marked
    else:
        defaults = run.__defaults__ or ()
        run.__defaults__ = tuple(marked if each == marked else each for each in defaults)


def _turns(given: dict[str, Any], *, budget_decides: bool) -> dict[str, Any]:
    """Return the options of a run: if a budget decides, without the limit that is the default."""
    is_default = isinstance(given.get("max_turns", _DefaultTurns()), _DefaultTurns)
    return {**given, "max_turns": None} if is_default and budget_decides else given


def durable(**options: Any) -> Callable[[AnyTool], AnyTool]:
    """Return a decorator that says how a tool is called in a job; it goes above `function_tool`.

    Args:
        **options: Those of `ToolOptions`: `effect=True, in_doubt="ask"`, `risk="high"`, …
    """
    made = ToolOptions.of({"perdure": options})

    def declare(tool: AnyTool) -> AnyTool:
        vars(tool)[OPTIONS] = made
        return tool

    return declare


class DurableRunner(AgentRunner):
    """Runs agents durably in the code of a job, and as the SDK does everywhere else."""

    def __init__(
        self, tools: Mapping[str, ToolOptions] | None = None, price: Price | None = None
    ) -> None:
        self._tools = dict(tools or {})
        self._price = price
        self._copies: WeakKeyDictionary[JobContext, DurableCopies] = WeakKeyDictionary()

    async def run(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> RunResult:
        """Run an agent to its end; return the result of the SDK."""
        ctx = job(ADAPTER)
        if ctx is None:
            return await super().run(starting_agent, input, **kwargs)
        copies = self._copies_for(ctx)
        options = _turns(kwargs, budget_decides=await budget_decides())
        with ctx.scope(key_of(ctx, "run", starting_agent.name)):
            agent, given = copies.agent(starting_agent), copies.input(input)
            return await super().run(agent, given, **copies.options(options))

    def run_streamed(
        self, starting_agent: Agent[Any], input: Any, **kwargs: Any
    ) -> RunResultStreaming:
        """Begin to run an agent; return the stream of the SDK.

        In a job, the events of a model come when its answer is durable; live they are the output
        of the job: see `Handle.stream`.
        """
        ctx = job(ADAPTER)
        if ctx is None:
            return super().run_streamed(starting_agent, input, **kwargs)
        copies = self._copies_for(ctx)
        options = _turns(kwargs, budget_decides=declared_limits(ctx).ends_loops)
        # The task of the run begins in this scope, and remains in it.
        with ctx.scope(key_of(ctx, "run", starting_agent.name)):
            agent, given = copies.agent(starting_agent), copies.input(input)
            return super().run_streamed(agent, given, **copies.options(options))

    def _copies_for(self, ctx: JobContext) -> "DurableCopies":
        found = self._copies.get(ctx)
        if found is None:
            found = self._copies[ctx] = DurableCopies(self._tools, self._price)
        return found


# Copies of agents


class Turn:
    """Whose turn it is, for the model calls in it."""

    def __init__(self, agent: str = "", timeout: float | None = None) -> None:
        self.agent = agent
        self.timeout = timeout


_turn: ContextVar[Turn] = ContextVar("perdure.openai_agents.turn", default=Turn())  # noqa: B039


class DurableCopies:
    """The durable copies of agents in one run of a job: one of each, as approvals ask for it."""

    def __init__(self, tools: Mapping[str, ToolOptions], price: Price | None) -> None:
        self._options = tools
        self._price = price
        self._agents: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the durable copy of an agent, and of those that it hands over to."""
        if _is_copy(agent):
            return agent
        if id(agent) in self._agents:
            return self._agents[id(agent)][1]
        made = copy.copy(agent)
        self._agents[id(agent)] = agent, made
        turn = Turn(agent.name, agent.model_settings.timeout)
        if isinstance(agent.model, Model):
            made.model = DurableModel(agent.model, self._price)
        made.model_settings = _once(agent.model_settings)
        made.handoffs = [self._handoff(each) for each in agent.handoffs]
        made.tools = [self._tool(each) for each in agent.tools]
        made.mcp_servers = [_durable_server(each) for each in agent.mcp_servers]
        made.__dict__["get_all_tools"] = partial(self._all_tools, made, turn)
        return made

    async def _all_tools(
        self, agent: Agent[Any], turn: Turn, context: RunContextWrapper[Any]
    ) -> list[Tool]:
        _turn.set(turn)
        found = await type(agent).get_all_tools(agent, context)
        return [self._tool(each) for each in found]  # also those of MCP servers

    def _handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.agent(target)
        made = copy.copy(target)
        made.on_invoke_handoff = partial(self._hand_over, target)
        return made

    async def _hand_over(
        self, target: Handoff[Any, Any], context: RunContextWrapper[Any], arguments: str
    ) -> Agent[Any]:
        known = target.__dict__.get("_agent_ref")
        agent = None if known is None else known()
        ctx = job(ADAPTER)
        if agent is None or ctx is None:  # only its function knows to whom
            return self.agent(await target.on_invoke_handoff(context, arguments))

        async def body(_: ToolRun) -> str:
            return (await target.on_invoke_handoff(context, arguments)).name

        await tool_call(ctx, target.tool_name, body, key=None, arguments=_parsed(arguments))
        return self.agent(agent)

    # Tools

    def _tool(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool):
            return durable_local_tool(tool, self._options)
        if isinstance(tool.on_invoke_tool, partial):
            return tool
        made = copy.copy(tool)
        made.on_invoke_tool = partial(self._invoke, tool)
        made.needs_approval = False  # people are asked when it is invoked
        made.timeout_seconds = None  # the time that it waits for people does not count
        return made

    async def _invoke(self, tool: FunctionTool, context: ToolContext[Any], arguments: str) -> Any:
        ctx = job(ADAPTER)
        if ctx is None:
            return await invoke_function_tool(
                function_tool=tool, context=context, arguments=arguments
            )
        given, key = _parsed(arguments), key_of(ctx, context.tool_call_id)
        if await _needs_approval(tool, context, given):
            answer = await ask(ctx, tool.name, given, key=key, description=tool.description)
            if not answer.approved:
                return refused(answer.reason)
            given = answer.arguments

        options = self._options_of(tool)
        called = _raising(tool) if options.effect else tool

        async def body(run: ToolRun) -> Any:
            text = arguments if run.arguments == _parsed(arguments) else json.dumps(run.arguments)
            with _refused_arguments():
                found = await invoke_function_tool(
                    function_tool=called, context=context, arguments=text
                )
            return found if run.step is None else _plain(tool, found)

        try:
            return await tool_call(ctx, tool.name, body, key=key, arguments=given, options=options)
        except ApprovalRejected as no:
            return refused(no.reason)
        except Exception as error:
            told = await _told_model(tool, context, error) if options.effect else None
            if told is None:
                raise
            return told

    def _options_of(self, tool: FunctionTool) -> ToolOptions:
        declared = tool.__dict__.get(OPTIONS) or self._options.get(tool.name)
        if declared is None:
            inline = bool(tool.__dict__.get("_is_agent_tool"))
            declared = ToolOptions(inline=True) if inline else _options_by_hints(tool)
        timeout = declared.timeout
        if declared.effect and timeout is None:
            timeout = tool.timeout_seconds  # see `_raising`
        return struct_replace(declared, raises=RAISES, timeout=timeout)

    # What else a run is given

    def input(self, given: Any) -> Any:
        """Return the input of a run.

        Raises:
            DefinitionError: It is the state of a run that did not begin in this job.
        """
        if isinstance(given, RunState):
            held: dict[str, Any] = given.__dict__
            if not _is_copy(held["_current_agent"]):
                raise DefinitionError(
                    "a run that was interrupted elsewhere cannot become durable in its middle: "
                    "begin it in the job, where people are asked without an interruption"
                )
        return cast("Any", given)

    def options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a run, with a durable model and a durable session."""
        given: Any = kwargs.get("run_config") or {}
        config = given if isinstance(given, RunConfig) else RunConfig(**dict[str, Any](given))
        made = replace(config, model_provider=DurableProvider(config.model_provider, self._price))
        if isinstance(config.model, Model):
            made.model = DurableModel(config.model, self._price)
        if config.model_settings is not None:
            made.model_settings = _once(config.model_settings)
        session = kwargs.get("session")
        if session is None:
            return {**kwargs, "run_config": made}
        return {**kwargs, "run_config": made, "session": durable_session(session)}


def _is_copy(agent: Any) -> bool:
    return isinstance(getattr(agent, "get_all_tools", None), partial)


def _once(settings: ModelSettings) -> ModelSettings:
    """Return settings without the retries and the timeout of the SDK: the step has its own."""
    return replace(settings, retry=None, timeout=None)


def _parsed(arguments: str) -> Any:
    """Return the arguments that a model has written, for people; as text if they are no JSON."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


async def _needs_approval(tool: FunctionTool, context: ToolContext[Any], arguments: Any) -> bool:
    policy = tool.needs_approval
    if not callable(policy):
        return policy
    if not isinstance(arguments, dict):
        return True  # its function could not look at them
    return await policy(context, cast("dict[str, Any]", arguments), context.tool_call_id)


def _raising(tool: FunctionTool) -> FunctionTool:
    """Return an effect whose errors and timeouts end its step, instead of becoming an answer.

    The ledger must know of them: only if nothing has happened, the model may get one.
    """
    made = copy.copy(tool)
    made.timeout_seconds = None
    return set_function_tool_failure_error_function(made, None)


async def _told_model(
    tool: FunctionTool, context: ToolContext[Any], error: Exception
) -> str | None:
    """Return what the tool tells the model after an error; None if it wants the run to fail."""
    return await maybe_invoke_function_tool_failure_error_function(
        function_tool=tool, context=context, error=error
    )


@contextmanager
def _refused_arguments() -> Generator[None, None, None]:
    """Say of wrong arguments of a call that nothing has happened."""
    try:
        yield
    except ModelBehaviorError as error:
        if not str(error).startswith("Invalid JSON input for tool"):
            raise
        raise Refused(str(error)) from error


def _options_by_hints(tool: FunctionTool) -> ToolOptions:
    """Return the options of a tool by what its MCP server says of it, if it is one of a server."""
    hints = tool.mcp_annotations
    if hints is None and tool.__dict__.get("_mcp_tool_binding") is None:
        return ToolOptions()
    return options_by_hints(hints)


def _plain(tool: FunctionTool, value: Any) -> Any:
    """Return the output of a tool as plain values that the SDK sends to the model as the same."""
    adapter = tool.__dict__.get("_output_type_adapter")
    if adapter is not None:
        return adapter.dump_python(value, mode="json")
    if isinstance(value, BaseModel) and type(value).__module__.startswith("agents."):
        return value.model_dump(mode="json", exclude_none=True)  # an image, a file, a text
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(tool, each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {str(name): _plain(tool, each) for name, each in pairs}
    return str(value)


# Models


class DurableProvider(ModelProvider):
    """Makes the models of a provider durable."""

    def __init__(self, inner: ModelProvider, price: Price | None = None) -> None:
        self.inner = inner.inner if isinstance(inner, DurableProvider) else inner
        self._price = price

    def get_model(self, model_name: str | None) -> Model:
        """Return the durable model of a name."""
        return DurableModel(self.inner.get_model(model_name), self._price)

    async def aclose(self) -> None:
        """Close the provider."""
        await self.inner.aclose()


class DurableModel(Model):
    """A model whose answers are recorded; outside of jobs it is the model itself."""

    def __init__(self, inner: Model, price: Price | None = None) -> None:
        self.inner = inner.inner if isinstance(inner, DurableModel) else inner
        self._price = price

    async def close(self) -> None:
        """Close the model."""
        await self.inner.close()

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        """Return the answer of the model, or the recorded one."""
        ask_model = partial(
            self.inner.get_response, system_instructions, input, model_settings, *args, **kwargs
        )
        ctx = job(ADAPTER)
        if ctx is None:
            return await ask_model()

        async def body(_: StepContext) -> ModelAnswer:
            with provider_managed_retries_disabled(True):
                found = await ask_model()
            return ModelAnswer(
                value=_RESPONSE.dump_python(found, mode="json", exclude_unset=True, warnings=False),
                usage=self._used(found),
                messages=_answer_of(found),
            )

        call = self._call(system_instructions, input, model_settings)
        return _RESPONSE.validate_python(await model_call(ctx, call, _storable(body)))

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        *args: Any,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Yield the events of the answer when it is durable; live they are output of the job."""
        begin = partial(
            self.inner.stream_response, system_instructions, input, model_settings, *args, **kwargs
        )
        ctx = job(ADAPTER)
        if ctx is None:
            async with aclosing(cast("Any", begin())) as events:
                async for event in events:
                    yield event
            return

        async def body(step: StepContext) -> ModelAnswer:
            found: list[Any] = []
            last: Any = None
            with provider_managed_retries_disabled(True):
                async with aclosing(cast("Any", begin())) as events:
                    async for event in events:
                        last = getattr(event, "response", None) or last
                        found.append(event.model_dump(mode="json", exclude_unset=True))
                        emit(step, found[-1])
            return ModelAnswer(value=found, usage=self._used(last), messages=_answer_of(last))

        call = self._call(system_instructions, input, model_settings)
        for plain in await model_call(ctx, call, _storable(body)):
            yield _event_kinds()[plain["type"]].model_validate(plain)
            await pause(0)  # the code that reads them keeps up

    def _call(
        self,
        instructions: str | None,
        input: str | list[TResponseInputItem],
        settings: ModelSettings,
    ) -> ModelCall:
        turn, name = _turn.get(), self._name()
        length = len(instructions or "") + len(str(input))
        provider = self._provider()
        return ModelCall(
            model=name,
            provider=provider,
            agent=turn.agent,
            messages=_added(instructions, input),
            estimate=estimated(
                name, length=length, most_output=settings.max_tokens, provider=provider
            ),
            price=self._price,
            timeout=turn.timeout or MODEL_TIMEOUT,
            raises=RAISES,
        )

    def _name(self) -> str:
        return str(getattr(self.inner, "model", None) or type(self.inner).__name__)

    def _provider(self) -> str:
        if isinstance(self.inner, OpenAIChatCompletionsModel | OpenAIResponsesModel):
            client = vars(self.inner).get("_client")
            return "azure.ai.openai" if isinstance(client, AsyncAzureOpenAI) else "openai"
        return provider_in(self._name())

    def _used(self, found: Any) -> ModelUsage:
        used, output = getattr(found, "usage", None), getattr(found, "output", ())
        calls = any(each.type == "function_call" for each in output)
        details = getattr(used, "input_tokens_details", None)
        return ModelUsage(
            model=self._name(),
            provider=self._provider(),
            answered_by=str(getattr(found, "model", "")),
            input_tokens=getattr(used, "input_tokens", 0),
            output_tokens=getattr(used, "output_tokens", 0),
            cache_read_tokens=getattr(details, "cached_tokens", 0) or 0,
            cache_write_tokens=getattr(details, "cache_write_tokens", 0) or 0,
            finish_reason="tool_call" if calls else "stop",
        )


_RESPONSE: Final[TypeAdapter[ModelResponse]] = TypeAdapter(ModelResponse)


@cache
def _event_kinds() -> dict[str, type[BaseModel]]:
    """Return the classes of the events of a stream by their type."""
    kinds = cast("tuple[type[BaseModel], ...]", get_args(get_args(ResponseStreamEvent)[0]))
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in kinds}


def _storable(body: ModelBody) -> ModelBody:
    """Return a call whose errors can be stored: without the response that they hold."""

    async def attempt(step: StepContext) -> ModelAnswer:
        try:
            return await body(step)
        except APIError as error:
            if not is_outage(error):  # otherwise its headers say when to try again
                vars(error).update(
                    request=None, **({"response": None} if "response" in vars(error) else {})
                )
            raise

    return attempt


# The transcript


def _added(instructions: str | None, input: str | list[TResponseInputItem]) -> list[Message]:
    """Return what a call adds to the history: what follows the last answer of a model."""
    if isinstance(input, str):
        items: list[Any] = [{"role": "user", "content": input}]
    else:
        items = list(cast("list[Any]", input))
    answers = [place for place, each in enumerate(items) if _is_answer(each)]
    new = [_message_of(each) for each in items[answers[-1] + 1 if answers else 0 :]]
    if instructions and not answers:
        return [message("system", text_part(instructions)), *new]
    return new


def _is_answer(item: Any) -> bool:
    kind = item.get("type", "message")
    return item.get("role") == "assistant" or not (kind == "message" or kind.endswith("_output"))


def _message_of(item: Any) -> Message:
    if "output" in item:
        return message("tool", tool_response_part(str(item.get("call_id")), item["output"]))
    return message(str(item.get("role", "user")), text_part(_text(item.get("content", ""))))


def _answer_of(found: Any) -> list[Message]:
    """Return an answer of a model for the transcript."""
    parts = [_part_of(each) for each in getattr(found, "output", ())]
    return [message("assistant", *parts)] if parts else []


def _part_of(item: Any) -> Message:
    if item.type == "function_call":
        return tool_call_part(item.call_id, item.name, _parsed(item.arguments))
    if item.type == "reasoning":
        return text_part("".join(each.text for each in item.summary), "reasoning")
    if item.type == "message":
        return text_part("".join(getattr(each, "text", "") for each in item.content))
    return text_part(f"[{item.type}]")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content)
    return "".join(str(each.get("text") or f"[{each.get('type')}]") for each in parts)


# Sessions


class JobSession(SessionABC):
    """A conversation that lives in a job: create it in the code of the job.

    It needs no database: a replay of the job rebuilds it.
    """

    def __init__(self, session_id: str = "job") -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = None
        self._items: list[TResponseInputItem] = []

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items, or the last of them."""
        return list(self._items if limit is None else self._items[len(self._items) - limit :])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items."""
        self._items.extend(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item, and return it."""
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        """Remove all items."""
        self._items.clear()


def durable_session(session: Session) -> Session:
    """Return a session whose accesses are steps of the job: none happens twice.

    `Runner.run(…, session=…)` makes its session durable itself; use this for your own calls.

    Raises:
        DefinitionError: The session is kept in memory, where a restart loses it.
    """
    kind = type(session)
    if isinstance(session, JobSession) or hasattr(kind, "perdure_inner"):
        return session
    if str(getattr(session, "db_path", "")) == ":memory:":
        raise DefinitionError(
            f"the session {session.session_id!r} is kept in memory, and a restart loses it: use "
            "JobSession() for a conversation within the job, or a session with a file or server"
        )
    return _seen_as(_durable_kind(kind), session)


def _seen_as(kind: type[Any], value: T) -> T:
    """Return the same object as of a derived class, which has other methods."""
    view = object.__new__(kind)
    object.__setattr__(view, "__dict__", vars(value))
    return view


_MANY: Final = 1_000_000_000  # items: more than any session has, whatever its settings say


@cache
def _durable_kind(kind: type[Any]) -> type[Any]:
    """Return a class of sessions whose accesses are steps."""

    async def get_items(self: Any, limit: int | None = None) -> list[Any]:
        return await _access(self, "get", partial(kind.get_items, self, limit))

    async def add_items(self: Any, items: list[Any]) -> None:
        if items:
            await _access(self, "add", partial(kind.add_items, self, items), changes=kind)

    async def pop_item(self: Any) -> Any:
        return await _access(self, "pop", partial(kind.pop_item, self), changes=kind)

    async def clear_session(self: Any) -> None:
        await _access(self, "clear", partial(kind.clear_session, self))

    methods = get_items, add_items, pop_item, clear_session
    members = {each.__name__: each for each in methods} | {"perdure_inner": kind}
    if hasattr(kind, "run_compaction"):

        async def run_compaction(self: Any, args: Any = None) -> None:
            await _access(self, "compact", partial(kind.run_compaction, self, args))

        members["run_compaction"] = run_compaction
    return type(kind.__name__, (kind,), members)


async def _access(
    session: Any, verb: str, access: Callable[[], Any], changes: type[Any] | None = None
) -> Any:
    """Access a session in a step; a change that a crash has interrupted is made at most once."""
    ctx = job(ADAPTER)
    if ctx is None:
        return await access()

    async def body(step: StepContext) -> Any:
        if changes is not None:
            items = await changes.get_items(session, _MANY)
            before = step.load_checkpoint()
            if before is None:
                await step.save_checkpoint([len(items), items[-1:]])
            elif before[0] != len(items):  # a crash came after the change
                return before[1][0] if verb == "pop" else None
        return await access()

    return await ctx.call(f"session.{verb}", body, input={"session": str(session.session_id)})


# MCP servers


def _durable_server(server: MCPServer) -> MCPServer:
    """Return a server whose list of tools is a step; each call of them is one by itself."""
    kind = type(server)
    if hasattr(kind, "perdure_inner"):
        return server

    async def list_tools(self: Any, context: Any = None, agent: Any = None) -> list[Any]:
        ctx = job(ADAPTER)
        if ctx is None:
            return await kind.list_tools(self, context, agent)

        async def body() -> Any:
            found = await kind.list_tools(self, context, agent)
            return _TOOLS.dump_python(found, mode="json", by_alias=True, exclude_none=True)

        listed = await ctx.call("tools", body, input={"server": str(self.name)})
        return _TOOLS.validate_python(listed)

    members = {"list_tools": list_tools, "perdure_inner": kind}
    return _seen_as(type(kind.__name__, (kind,), members), server)


_TOOLS: Final[TypeAdapter[list[MCPTool]]] = TypeAdapter(list[MCPTool])
