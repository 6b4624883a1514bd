"""A part of a graph inside a job: what identifies it, how it asks people, and what it emits.

Whatever LangGraph runs for a node, its *task*, has a place in the graph that is the same in every
replay: the number of the superstep, the node, and the number of the `Send` that started it. Its
id, and the ids of checkpoints and interrupts, differ from run to run.

A step cannot wait for a person in its middle, as `interrupt` does. So a step that interrupts ends
with what it asks for; then people are asked, and another step does the work with their answers.
"""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, TypeAlias, cast

from perdure.base.extra import extra
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.durable_calls import AskAnswer, ask, emit, key_of
from perdure.integrations.langgraph.plain import dump, load

with extra("langgraph", "a durable graph"):
    from langchain_core.callbacks import AsyncCallbackHandler
    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.config import get_async_callback_manager_for_config
    from langchain_core.tracers._streaming import _StreamingCallbackHandler
    from langgraph._internal._constants import (
        CONFIG_KEY_RUNTIME,
        CONFIG_KEY_SCRATCHPAD,
        CONFIG_KEY_SEND,
    )
    from langgraph.errors import GraphInterrupt, ParentCommand

OnInterrupt: TypeAlias = Callable[[JobContext, Any], Awaitable[Any]]

_ASKS: Final = "interrupt"
_COMMANDS: Final = "parent_command"
_RETURNS: Final = "value"


@dataclasses.dataclass(frozen=True)
class GraphRun:
    """How a graph runs: who answers interrupts, and where live output goes, if anywhere."""

    on_interrupt: OnInterrupt | None = None
    topic: str | None = None


_run: ContextVar[GraphRun | None] = ContextVar("perdure.graph_run", default=None)


@contextmanager
def running(run: GraphRun) -> Generator[None]:
    """Run a graph in this way inside the block."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def current_run(default: GraphRun | None = None) -> GraphRun:
    """Return how the current graph runs."""
    return _run.get() or default or GraphRun()


def place_of(config: RunnableConfig) -> tuple[str, ...]:
    """Return what identifies a task in its graph."""
    told = config.get("metadata", {})
    path = cast("tuple[Any, ...]", told.get("langgraph_path", ()))
    pushed = [str(part) for part in path[1:] if type(part) is int]
    return str(told.get("langgraph_step", "")), str(told.get("langgraph_node", "")), *pushed


async def answered(
    ctx: JobContext,
    place: tuple[str, ...],
    run: GraphRun,
    work: Callable[[str, list[Any]], Awaitable[Any]],
) -> Any:
    """Return what a part of a graph returns, with the answers to its interrupts.

    Args:
        ctx: The job.
        place: What identifies it in its graph.
        run: How the graph runs.
        work: Does it in a step with this key, and with these answers; see `outcome_of`.
    """
    answers: list[Any] = []
    key = key_of(ctx, *place)
    while True:
        found = await work(key if not answers else f"{key}?{len(answers)}", answers)
        if not is_outcome(found):  # a person said what it returned
            return load(found)
        if _COMMANDS in found:
            raise ParentCommand(load(found[_COMMANDS]))
        if _ASKS not in found:
            return load(found[_RETURNS])
        asked = f"{key}?{len(answers) + 1}"
        answers.append(await answer_to(ctx, run, load(found[_ASKS]), asked))


async def outcome_of(work: Awaitable[Any]) -> dict[str, Any]:
    """Return how a part of a graph ends, as plain JSON values: it may also ask."""
    try:
        return {_RETURNS: dump(await work)}
    except ParentCommand as found:
        return {_COMMANDS: dump(found.args[0])}
    except GraphInterrupt as found:
        return {_ASKS: dump(found.args[0][0].value)}


def is_outcome(found: Any) -> bool:
    """Whether `outcome_of` made it; otherwise a person said what a step returned."""
    kinds = ({_RETURNS}, {_COMMANDS}, {_ASKS})
    return isinstance(found, dict) and set(cast("dict[str, Any]", found)) in kinds


# People


async def answer_to(ctx: JobContext, run: GraphRun, value: Any, key: str) -> Any:
    """Return what a graph resumes with after it has interrupted itself with a value."""
    if run.on_interrupt is None:
        return await answer_of_people(ctx, value, key)
    with ctx.scope(f"interrupt {key}"):
        return await run.on_interrupt(ctx, value)


async def answer_of_people(ctx: JobContext, value: Any, key: str) -> Any:
    """Ask people about the value of an interrupt; return what the graph resumes with.

    Requests of LangChain's `HumanInTheLoopMiddleware` are answered with its decisions. Any other
    value is shown to people as `question`. The graph resumes with `answer`: true if they approve
    it as it is, what they have set it to if they edit it, and false if they reject.
    """
    given = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
    if given.get("type") == "tool_approval":
        return await _decision(ctx, given, key)
    if isinstance(requests := given.get("action_requests"), list):
        asked = [
            _decision(ctx, request, f"{key}.{number}")
            for number, request in enumerate(cast("list[Mapping[str, Any]]", requests))
        ]
        return {"decisions": await asyncio.gather(*asked)}
    question = {"question": dump(value), "answer": True}
    found = await ask(ctx, "interrupt", question, key=key, description=_title(value))
    return found.arguments["answer"] if found.approved else False


def _title(value: Any) -> str:
    return value if isinstance(value, str) else "Continue the graph"


async def _decision(ctx: JobContext, request: Mapping[str, Any], key: str) -> dict[str, Any]:
    name, given = str(request["name"]), dump(request["args"])
    found = await ask(ctx, name, given, key=key, description=str(request.get("description") or ""))
    if not found.approved:
        return {"type": "reject", "message": rejection(name, found)}
    if found.arguments == given:
        return {"type": "approve"}
    return {"type": "edit", "edited_action": {"name": name, "args": load(found.arguments)}}


def rejection(tool: str, found: AskAnswer) -> str:
    """Return a no as the answer for the model."""
    who, why = found.person or "A person", f": {found.reason}" if found.reason else ""
    return f"{who} rejected the call of {tool}{why}"


# Inside a step


def config_in_step(
    config: RunnableConfig, step: StepContext | None, answers: list[Any], topic: str | None
) -> RunnableConfig:
    """Return the config of a task for its step: with answers to interrupts, and live output."""
    given = dict(config.get("configurable", {}))
    pad, runtime = given.get(CONFIG_KEY_SCRATCHPAD), given.get(CONFIG_KEY_RUNTIME)
    if pad is not None:
        numbers = count()
        given[CONFIG_KEY_SCRATCHPAD] = dataclasses.replace(
            pad,
            resume=list(answers),
            interrupt_counter=lambda: next(numbers),
            get_null_resume=_no_answer,
        )
        given[CONFIG_KEY_SEND] = _without_resume(given.get(CONFIG_KEY_SEND))
    found: RunnableConfig = {**config, "configurable": given}
    if step is None or topic is None:
        return found
    node = str(config.get("metadata", {}).get("langgraph_node", ""))
    if runtime is not None:
        tell = _teller(step, node, topic)
        given[CONFIG_KEY_RUNTIME] = runtime.override(stream_writer=tell)
    manager = get_async_callback_manager_for_config(found).copy()
    manager.add_handler(_Tokens(step, node, topic), inherit=True)
    return {**found, "callbacks": manager}


def _no_answer(consume: bool = False) -> None:  # noqa: FBT001, FBT002  LangGraph passes it so
    del consume


def _without_resume(send: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Return how a step writes: answers are in our journal, LangGraph need not keep them."""

    def write(writes: Any) -> None:
        kept = [each for each in writes if each[0] != "__resume__"]
        if kept and send is not None:
            send(kept)

    return write


def _teller(step: StepContext, node: str, topic: str) -> Callable[[Any], None]:
    def tell(value: Any) -> None:
        emit(step, {"node": node, "custom": dump(value)}, topic=topic)

    return tell


class _Tokens(AsyncCallbackHandler, _StreamingCallbackHandler[Any]):
    """Emits what a model says while it says it; models stream because it listens."""

    def __init__(self, step: StepContext, node: str, topic: str) -> None:
        self._step, self._node, self._topic = step, node, topic

    async def on_llm_new_token(self, token: str, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  the rest is not looked at
        """Emit a token."""
        if token:
            emit(self._step, {"node": self._node, "text": token}, topic=self._topic)

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:
        """Return a stream as it is."""
        del run_id
        return output

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:
        """Return a stream as it is."""
        del run_id
        return output
