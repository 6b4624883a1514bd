"""Durable runs of Google's Agent Development Kit; needs `perdure[adk]`.

    app = google.adk.apps.App(name="…", root_agent=agent, plugins=[PerdurePlugin()])
    runner = Runner(app=app, session_service=DurableSessions(service))

In the code of a job, each model call, each tool call and each access to a session is then a step.
After a crash, the ADK's loop runs again, and takes recorded results from the journal. Outside a job
nothing changes, and the log has one warning.

People are asked about a tool with `require_confirmation`, and may edit its arguments. The job waits
and occupies no worker; a rejection goes to the model as the tool's answer. An `AgentTool` runs in
the code of the job, in its own scope.

Create an `InMemorySessionService` in the code of the job, with the runner: a replay rebuilds it.
Callbacks and instructions that are functions run again at every replay, and must be deterministic.
"""

import base64
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, contextmanager
from enum import Enum
from functools import partial
from typing import Any, Final, cast

from pydantic_core import to_jsonable_python

from perdure.base.codec import digest
from perdure.base.errors import ApprovalRejected, DefinitionError, Refused
from perdure.base.extra import extra
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.durable_calls import (
    MCP_REFUSALS,
    Message,
    ModelAnswer,
    ModelCall,
    Price,
    ToolOptions,
    ToolRun,
    allowed,
    ask,
    budget_decides,
    emit,
    estimated,
    in_job,
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
from perdure.jobs.budget import ModelUsage

with extra("adk", "a durable run of Google's Agent Development Kit"):
    from google.adk.agents import BaseAgent, InvocationContext, LlmAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.events import Event, EventActions
    from google.adk.flows.llm_flows.functions import generate_client_function_call_id
    from google.adk.models import BaseLlm
    from google.adk.models.base_llm_connection import BaseLlmConnection
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from google.adk.tools import AgentTool, BaseTool, ToolContext
    from google.adk.tools.base_authenticated_tool import BaseAuthenticatedTool
    from google.adk.tools.base_toolset import BaseToolset
    from google.adk.tools.tool_confirmation import ToolConfirmation

ADAPTER: Final = "adk"
_LIMIT: Final = "ADK_MAX_LLM_CALLS"  # by which users set the default of their runs

# Tools of the ADK that only tell it how to go on.
_INLINE: Final = frozenset({"transfer_to_agent", "exit_loop", "set_model_response"})


class PerdurePlugin(BasePlugin):
    """Makes the models and tools of a runner durable in the code of jobs."""

    def __init__(
        self,
        *,
        tools: Mapping[str, Mapping[str, Any] | bool] | None = None,
        price: Price | None = None,
    ) -> None:
        """Create the plugin.

        Args:
            tools: Options of tools by name: `{"send": {"effect": True}}`; False: part of the job,
                no step. A tool may have them in its `custom_metadata`, too, under "perdure".
            price: Returns the USD of a usage, None if unknown; by default by genai-prices.
        """
        super().__init__(name="perdure")
        self._tools = {name: ToolOptions.of({"perdure": of}) for name, of in (tools or {}).items()}
        self._price = price

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Check that the session survives a restart, and whose limit of calls holds."""
        service = invocation_context.session_service
        if in_job() and not isinstance(service, DurableSessions | InMemorySessionService):
            raise DefinitionError(
                f"in a job, pass session_service=DurableSessions({type(service).__name__}(…)): "
                "otherwise a replay writes to the session again"
            )
        config = invocation_context.run_config
        by_user = config and ("max_llm_calls" in config.model_fields_set or _LIMIT in os.environ)
        if config is not None and not by_user and await budget_decides():
            unlimited = config.model_copy(update={"max_llm_calls": 0})
            invocation_context.run_config = unlimited

    async def before_agent_callback(
        self,
        *,
        agent: BaseAgent,
        callback_context: CallbackContext,  # noqa: ARG002 - it is given
    ) -> None:
        """Give an agent a durable model; outside of jobs it is the model itself."""
        if isinstance(agent, LlmAgent) and not isinstance(agent.model, DurableLlm):
            inner = agent.canonical_model
            inner = inner.inner if isinstance(inner, DurableLlm) else inner
            agent.model = DurableLlm(
                model=inner.model, inner=inner, agent=agent.name, price=self._price
            )
            for each in cast("list[Any]", agent.tools):
                if isinstance(each, BaseToolset):  # one of MCP connects at every replay
                    cast("Any", each).get_tools = allowed(each.get_tools)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Ask people about a tool that needs it, and make the call that follows durable."""
        ctx = job(ADAPTER)
        if ctx is None:
            return None
        vars(tool).setdefault("run_async", partial(self._run_tool, tool))
        if not await tool.check_require_confirmation(tool_args, tool_context):
            return None
        key = key_of(ctx, "ask", tool_context.function_call_id)
        answer = await ask(ctx, tool.name, dict(tool_args), key=key, description=tool.description)
        if not answer.approved:
            return _refused(answer.reason)
        tool_args.clear()
        tool_args.update(answer.arguments)
        tool_context.tool_confirmation = ToolConfirmation(confirmed=True)
        return None

    async def _run_tool(
        self, tool: BaseTool, *, args: dict[str, Any], tool_context: ToolContext
    ) -> Any:
        run = partial(type(tool).run_async, tool, tool_context=tool_context)
        ctx = job(ADAPTER)
        if ctx is None:
            return await run(args=args)
        options = self._options_of(tool)
        if options.effect and hasattr(tool, "raw_mcp_tool"):
            # Its own method turns errors into answers; the ledger must know of them.
            run = partial(
                BaseAuthenticatedTool.run_async, cast("Any", tool), tool_context=tool_context
            )

        async def body(call: ToolRun) -> Any:
            with _refused_calls():
                found = await run(args=call.arguments)
            if call.step is None:
                return found
            changes = tool_context.actions.model_dump(exclude_defaults=True, exclude_none=True)
            return {
                "result": to_jsonable_python(found, fallback=str, serialize_unknown=True),
                "actions": _packed(changes),
            }

        key = key_of(ctx, tool_context.function_call_id)
        try:
            found = await tool_call(ctx, tool.name, body, key=key, arguments=args, options=options)
        except ApprovalRejected as no:
            return _refused(no.reason)
        if options.inline or not _is_recorded(found):  # a person said what it returned
            return found
        _apply(found["actions"], tool_context.actions)
        return found["result"]

    def _options_of(self, tool: BaseTool) -> ToolOptions:
        if (declared := self._tools.get(tool.name)) is not None:
            return declared
        if isinstance(tool, AgentTool) or tool.name in _INLINE:
            return ToolOptions(inline=True)
        server = getattr(tool, "raw_mcp_tool", None)
        hinted = None if server is None else options_by_hints(server.annotations)
        return ToolOptions.of(tool.custom_metadata, hinted)


@contextmanager
def _refused_calls() -> Generator[None, None, None]:
    """Say of a call that an MCP server has refused that nothing has happened."""
    try:
        yield
    except Exception as error:
        if getattr(error, "code", None) in MCP_REFUSALS:
            raise Refused(str(error)) from error
        raise


def _refused(reason: str) -> dict[str, Any]:
    return {"error": f"This tool call is rejected. {reason}".rstrip()}


def _is_recorded(found: Any) -> bool:
    return isinstance(found, dict) and set(cast("Any", found)) == {"result", "actions"}


def _apply(recorded: Any, actions: EventActions) -> None:
    """Repeat what a tool has changed: the state, the artifacts, who goes on."""
    found = EventActions.model_validate(_unpacked(recorded))
    for name in found.model_fields_set:
        value: Any = getattr(found, name)
        present: Any = getattr(actions, name)
        setattr(actions, name, present | value if isinstance(present, dict) else value)


# Models


class DurableLlm(BaseLlm):
    """A model whose answers are recorded; outside of jobs it is the model itself."""

    inner: Any
    agent: str = ""
    price: Any = None

    @property
    def capabilities(self) -> Any:
        """What the model can do."""
        return self.inner.capabilities

    def connect(self, llm_request: LlmRequest) -> Any:
        """Open a live connection, which is not durable."""
        return cast("BaseLlmConnection", self.inner.connect(llm_request))

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - as the ADK passes it
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the answer of the model when it is durable; a stream is live output of the job."""
        ctx = job(ADAPTER)
        if ctx is None:
            async with aclosing(self.inner.generate_content_async(llm_request, stream)) as found:
                async for response in found:
                    yield response
            return

        async def body(step: StepContext) -> ModelAnswer:
            values: list[Any] = []
            last: Any = None
            async with aclosing(self.inner.generate_content_async(llm_request, stream)) as found:
                async for response in found:
                    _name_calls(response)
                    values.append(_packed(response.model_dump(exclude_none=True)))
                    last = response
                    if stream:
                        emit(step, values[-1])
            return ModelAnswer(value=values, usage=self._used(last), messages=_answer_of(last))

        for value in await model_call(ctx, self._call(llm_request), body):
            yield LlmResponse.model_validate(_unpacked(value))

    def _call(self, request: LlmRequest) -> ModelCall:
        config: Any = request.config
        system = str(config.system_instruction or "")
        length, most = len(system) + len(str(request.contents)), config.max_output_tokens
        provider = self._provider()
        return ModelCall(
            model=self.model,
            provider=provider,
            agent=self.agent,
            messages=_added(system, request.contents),
            estimate=estimated(self.model, length=length, most_output=most, provider=provider),
            price=self.price,
        )

    def _provider(self) -> str:
        for kind in type(self.inner).__mro__:
            if kind.__module__.startswith("google.adk.models.") and kind.__name__ in _PROVIDERS:
                return _PROVIDERS[kind.__name__]
        return provider_in(self.model)

    def _used(self, last: Any) -> ModelUsage:
        used = getattr(last, "usage_metadata", None)
        thought = getattr(used, "thoughts_token_count", 0) or 0
        reason = getattr(last, "finish_reason", None)
        return ModelUsage(
            model=self.model,
            provider=self._provider(),
            answered_by=getattr(last, "model_version", None) or "",
            input_tokens=getattr(used, "prompt_token_count", 0) or 0,
            output_tokens=(getattr(used, "candidates_token_count", 0) or 0) + thought,
            cache_read_tokens=getattr(used, "cached_content_token_count", 0) or 0,
            finish_reason="" if reason is None else str(reason.value).lower(),
        )


# By the classes of the ADK, some of which need packages that may be missing.
_PROVIDERS: Final = {
    "Gemini": "gcp.gen_ai",
    "Claude": "gcp.vertex_ai",
    "AnthropicLlm": "anthropic",
}


def _name_calls(response: LlmResponse) -> None:
    """Give the tool calls their ids here, so that the journal keeps them."""
    for part in (response.content.parts if response.content else None) or ():
        if part.function_call is not None and not part.function_call.id:
            part.function_call.id = generate_client_function_call_id()


# The transcript


def _added(system: str, contents: list[Any]) -> list[Message]:
    """Return what a call adds to the history: what follows the last answer of a model."""
    answers = [place for place, each in enumerate(contents) if each.role == "model"]
    new = [_message_of(each) for each in contents[answers[-1] + 1 if answers else 0 :]]
    if system and not answers:
        return [message("system", text_part(system)), *new]
    return new


def _message_of(content: Any) -> Message:
    parts = [_part_of(each) for each in content.parts or ()]
    role = "assistant" if content.role == "model" else "user"
    of_tools = any(each["type"] == "tool_call_response" for each in parts)
    return message("tool" if of_tools else role, *parts)


def _answer_of(last: Any) -> list[Message]:
    content = getattr(last, "content", None)
    return [] if content is None else [{**_message_of(content), "role": "assistant"}]


def _part_of(part: Any) -> Message:
    if part.function_call is not None:
        call = part.function_call
        return tool_call_part(call.id or "", call.name, call.args)
    if part.function_response is not None:
        answer = part.function_response
        return tool_response_part(answer.id or "", answer.response)
    if part.text is not None:
        return text_part(part.text, "reasoning" if part.thought else "text")
    return text_part("[data]")


# Sessions


class DurableSessions(BaseSessionService):
    """A service of sessions whose accesses are steps in the code of a job: none happens twice."""

    def __init__(self, inner: BaseSessionService) -> None:
        self.inner = inner

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session, and return it; after a crash, the one that was created before."""
        ctx = job(ADAPTER)
        given: dict[str, Any] = {"app_name": app_name, "user_id": user_id}
        if ctx is None:
            return await self.inner.create_session(**given, state=state, session_id=session_id)
        id = session_id or str(ctx.uuid())

        async def body(step: StepContext) -> Any:
            found = None
            if step.load_checkpoint() is not None or session_id is None:
                found = await self.inner.get_session(**given, session_id=id)
            await step.save_checkpoint(id)
            if found is None:
                found = await self.inner.create_session(**given, state=state, session_id=id)
            return _packed(found.model_dump(exclude_none=True))

        made = await ctx.call("session.create", body, input={"session": id})
        return Session.model_validate(_unpacked(made))

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Return a session, or what it was when the job asked for it; None if there is none."""
        read = partial(
            self.inner.get_session,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            config=config,
        )
        ctx = job(ADAPTER)
        if ctx is None:
            return await read()

        async def body() -> Any:
            found = await read()
            return None if found is None else _packed(found.model_dump(exclude_none=True))

        found = await ctx.call("session.get", body, input={"session": session_id})
        return None if found is None else Session.model_validate(_unpacked(found))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add an event to a session, once, and return it."""
        ctx = job(ADAPTER)
        if ctx is None:
            return await self.inner.append_event(session, event)
        if event.partial:
            return event
        # By its content: agents that work side by side may get here in another order at a replay.
        parts = None if event.content is None else _packed(event.content.model_dump())
        event.id = key_of(ctx, digest(str([event.author, event.branch, parts]))[:32])
        where: dict[str, Any] = {"app_name": session.app_name, "user_id": session.user_id}

        async def body() -> None:
            recent = GetSessionConfig(num_recent_events=_RECENT)
            stored = await self.inner.get_session(**where, session_id=session.id, config=recent)
            if stored is None:
                raise DefinitionError(f"the session {session.id} is gone")
            if event.id not in {each.id for each in stored.events}:  # no crash came after it
                await self.inner.append_event(stored, event.model_copy(deep=True))

        await ctx.call("session.append", body, key=event.id, input={"session": session.id})
        return await super().append_event(session, event)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the sessions that there are now: this is not recorded."""
        return await self.inner.list_sessions(app_name=app_name, user_id=user_id)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session; to delete it again does no harm."""
        await self.inner.delete_session(app_name=app_name, user_id=user_id, session_id=session_id)


_RECENT: Final = 100  # events among which one is looked for that a crash may have left there


# Plain values


def _packed(value: Any) -> Any:
    """Return values of the ADK as plain JSON values."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return {str(name): _packed(each) for name, each in pairs}
    if isinstance(value, list | tuple | set):
        return [_packed(each) for each in cast("list[Any]", value)]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return to_jsonable_python(value, fallback=str)


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        if pairs.keys() == {"base64"}:
            return base64.b64decode(pairs["base64"])
        return {name: _unpacked(each) for name, each in pairs.items()}
    if isinstance(value, list):
        return [_unpacked(each) for each in cast("list[Any]", value)]
    return value
