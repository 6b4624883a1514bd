"""Graphs of LangGraph in a job: each node is a step, and after a crash only those in flight repeat.

    state = await run_graph(ctx, graph, {"messages": [...]})

LangGraph runs the graph in the code of the job, from its start at every replay, and takes the
results of its nodes from the journal. So it needs no durable checkpointer here; the one that it is
given is in memory, and ends with the run.

Some nodes are not a single step: in an agent with `PerdureMiddleware`, each model call and each
tool call is one; in a `ToolNode`, each tool call; in a subgraph, each of its nodes.
"""

# LangGraph leaves parts of its types open.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

import asyncio
import copy
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypedDict, Unpack, cast
from weakref import WeakKeyDictionary

from perdure.base.errors import ApprovalRejected, DefinitionError
from perdure.base.extra import extra
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.integrations.durable_calls import (
    ToolOptions,
    as_outage,
    ask,
    budget_decides,
    job,
    key_of,
)
from perdure.integrations.langgraph.agent import MARK, durable_tool
from perdure.integrations.langgraph.durable_node import (
    GraphRun,
    OnInterrupt,
    answer_to,
    answered,
    config_in_step,
    current_run,
    outcome_of,
    place_of,
    running,
)
from perdure.integrations.langgraph.plain import dump, load
from perdure.jobs.output import DEFAULT_TOPIC

with extra("langgraph", "run_graph"):
    from langchain_core.runnables import Runnable, RunnableConfig
    from langchain_core.runnables.config import var_child_runnable_config
    from langgraph._internal._runnable import RunnableCallable
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.constants import START
    from langgraph.prebuilt import ToolNode
    from langgraph.pregel import Pregel
    from langgraph.types import Command

_OF_AGENTS: Final = ("model", "tools")
_OF_LANGCHAIN: Final = 9_999  # the limit that `create_agent` gives its graphs
_NO_LIMIT: Final = 2**31


class GraphOptions(TypedDict, total=False):
    """How `run_graph` runs a graph; it explains them."""

    key: str
    on_interrupt: OnInterrupt | None
    stream: bool | str
    context: Any
    thread: str


async def run_graph(
    ctx: JobContext,
    graph: Any,
    input: Any,
    config: RunnableConfig | None = None,
    **options: Unpack[GraphOptions],
) -> Any:
    """Run a compiled graph, or an agent, durably; return its final state.

    Args:
        ctx: The job.
        graph: What `compile()` or `create_agent(…)` returned.
        input: Its input.
        config: LangGraph's config, such as `{"recursion_limit": 100}`.
        **options: `key`: identifies the run in its job, if several run at the same time.
            `on_interrupt`: `await on_interrupt(ctx, value)` returns what the graph resumes with; by
            default people are asked, see `answer_of_people`. `stream`: emit what models say and
            what nodes write to their stream, for `handle.stream()`; a text is the topic. `context`:
            that of the graph. `thread`: the conversation to continue, and to keep at the end, with
            the checkpointer of the graph; both are steps.

    Raises:
        DefinitionError: A thread is given, and the graph has no checkpointer, or delta channels.
        ApprovalRejected: A person did not let the graph continue at a breakpoint.
    """
    stream = options.get("stream", False)
    topic = stream if isinstance(stream, str) else DEFAULT_TOPIC if stream else None
    durable = _durable(graph)
    name = key_of(ctx, "graph", options.get("key") or str(graph.get_name()))
    thread, memory = options.get("thread"), InMemorySaver()
    own = {"thread_id": ctx.job_id, **(config or {}).get("configurable", {}), "checkpoint_ns": ""}
    given: RunnableConfig = {**(config or {}), "configurable": own}
    if _has_default_limit(graph, given) and await budget_decides():
        given["recursion_limit"] = _NO_LIMIT
    with ctx.scope(name), running(GraphRun(options.get("on_interrupt"), topic)):
        if thread is not None:
            await _load_thread(ctx, graph.checkpointer, thread, memory, given)
        graph_here = durable.copy({"checkpointer": memory})
        result = await _rounds(ctx, graph_here, input, given, options.get("context"))
        if thread is not None:
            await _save_thread(ctx, graph.checkpointer, thread, memory, given)
        return result


def _has_default_limit(graph: Any, config: RunnableConfig) -> bool:
    """Whether nobody has limited the supersteps of a run, but LangGraph or LangChain themselves."""
    of_graph = cast("dict[str, Any]", graph.config or {})
    limit = of_graph.get("recursion_limit", _OF_LANGCHAIN)
    return "recursion_limit" not in config and limit == _OF_LANGCHAIN


async def _load_thread(
    ctx: JobContext, saver: Any, thread: str, memory: InMemorySaver, config: RunnableConfig
) -> None:
    """Begin with the newest checkpoint of a thread, as it is when the job reaches this point."""
    if not isinstance(saver, BaseCheckpointSaver):
        raise DefinitionError(
            "run_graph(thread=…) needs a graph with a checkpointer: "
            "compile(checkpointer=PerdureSaver(app))"
        )
    known = cast("BaseCheckpointSaver[Any]", saver)

    async def load_newest() -> Any:
        found = await known.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
        return None if found is None else [dump(found.checkpoint), dump(found.metadata)]

    found = await ctx.call("thread:load", load_newest, key=key_of(ctx, "load"), input=thread)
    if found is not None:
        checkpoint, metadata = load(found)
        if metadata.get("counters_since_delta_snapshot"):
            raise DefinitionError("run_graph(thread=…) cannot continue a thread of delta channels")
        await memory.aput(config, checkpoint, metadata, checkpoint["channel_versions"])


async def _save_thread(
    ctx: JobContext, saver: Any, thread: str, memory: InMemorySaver, config: RunnableConfig
) -> None:
    """Keep how a thread has ended. If that is repeated after a crash, it is there twice, equal."""
    newest = await memory.aget_tuple(config)
    assert newest is not None

    async def save_newest() -> None:
        where: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        before = await saver.aget_tuple(where)
        point = newest.checkpoint
        parent = where if before is None else before.config
        await saver.aput(parent, point, newest.metadata, point["channel_versions"])

    await ctx.call("thread:save", save_newest, key=key_of(ctx, "save"), input=thread)


async def _rounds(
    ctx: JobContext, memory: Any, input: Any, given: RunnableConfig, context: Any
) -> Any:
    """Run a graph to its end, past its interrupts and breakpoints."""
    while True:
        result = await memory.ainvoke(input, given, context=context, durability="exit")
        state = await memory.aget_state(given)
        if not state.next:
            return result
        input = await _continued(ctx, state)


async def _continued(ctx: JobContext, state: Any) -> Any:
    """Return what a stopped graph continues with: an answer for each interrupt, or nothing.

    Interrupts come in the order of their tasks, which is the same in every replay.
    """
    run = current_run()
    asked = [answer_to(ctx, run, each.value, key_of(ctx, "interrupt")) for each in state.interrupts]
    if asked:
        answers = await asyncio.gather(*asked)
        found = zip(state.interrupts, answers, strict=True)
        return Command(resume={each.id: answer for each, answer in found})
    after = ", ".join(state.next)
    found = await ask(ctx, "breakpoint", {"next": list(state.next)}, key=key_of(ctx, "breakpoint"))
    if not found.approved:
        raise ApprovalRejected(f"continue with {after}", found.person, found.reason)
    return None


# Nodes


_made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _durable(graph: Any) -> Any:
    """Return a copy of a graph whose nodes are steps.

    Raises:
        TypeError: It is no compiled graph.
    """
    if not isinstance(graph, Pregel):
        raise TypeError(f"run_graph takes a compiled graph, not {graph!r}: call its compile()")
    compiled = cast("Any", graph)
    if compiled not in _made:
        is_agent = MARK in compiled.channels
        nodes = {
            name: node.copy({"bound": _bound(name, node, compiled, is_agent=is_agent)})
            for name, node in compiled.nodes.items()
        }
        _made[compiled] = compiled.copy({"nodes": nodes})
    return _made[compiled]


def _bound(name: str, node: Any, graph: Any, *, is_agent: bool) -> Any:
    """Return what runs for a node of a graph."""
    bound, options = node.bound, ToolOptions.of(node.metadata)
    if name == START or (is_agent and name in _OF_AGENTS):
        return bound
    if isinstance(bound, Pregel):
        return _Scoped(_durable(bound)).runnable()
    if options.inline:
        return _Scoped(bound).runnable()
    if isinstance(bound, ToolNode):
        return _with_durable_tools(bound)
    if options != ToolOptions(timeout=options.timeout, retry=options.retry):
        raise DefinitionError(f"the node {name!r} may have `timeout` and `retry`; tools have more")
    retried = _retried(node.retry_policy or graph.retry_policy)
    return _NodeStep(name, bound, options, retried).runnable()


def _retried(policies: Iterable[Any]) -> tuple[type[Exception], ...]:
    """Return the exceptions that LangGraph's policies name, which it retries by itself.

    `Exception` is not among them, as any step may end with `StepFailed`, which is one.
    """
    named: list[Any] = []
    for each in policies:
        named += each.retry_on if isinstance(each.retry_on, Sequence) else [each.retry_on]
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, Exception)]
    return tuple({kind.__name__: kind for kind in kinds if kind is not Exception}.values())


class _Scoped:
    """A node that runs in the code of the job, with its own numbering of operations."""

    def __init__(self, bound: Runnable[Any, Any]) -> None:
        self._bound = bound

    async def run(self, input: Any, config: RunnableConfig) -> Any:
        ctx = job("langgraph")
        if ctx is None:
            return await self._bound.ainvoke(input, config)
        with ctx.scope(key_of(ctx, *place_of(config))):
            return await self._bound.ainvoke(input, config)

    def runnable(self) -> Any:
        return RunnableCallable(None, self.run, trace=False)


class _NodeStep:
    """A node that is a step; exceptions that LangGraph retries come back as their own type."""

    def __init__(
        self,
        name: str,
        bound: Runnable[Any, Any],
        options: ToolOptions,
        retried: tuple[type[Exception], ...],
    ) -> None:
        self._name = name
        self._bound = bound
        self._options = options
        self._retried = retried

    async def run(self, input: Any, config: RunnableConfig) -> Any:
        ctx = job("langgraph")
        if ctx is None:
            return await self._bound.ainvoke(input, config)
        run, how = current_run(), self._options

        async def work(key: str, answers: list[Any]) -> Any:
            async def body(step: StepContext) -> Any:
                own = config_in_step(config, step, answers, run.topic)
                var_child_runnable_config.set(own)  # what `interrupt` looks at
                try:
                    return await outcome_of(self._bound.ainvoke(input, own))
                except self._retried:
                    raise
                except Exception as error:
                    raise as_outage(error) from error

            name = "".join(each if each not in "# /" else "_" for each in f"node:{self._name}")
            return await ctx.call(
                name, body, key=key, timeout=how.timeout, retry=how.retry, raises=self._retried
            )

        return await answered(ctx, place_of(config), run, work)

    def runnable(self) -> Any:
        return RunnableCallable(None, self.run, trace=False)


def _with_durable_tools(node: ToolNode) -> ToolNode:
    """Return a node of tools, each call of which is a step."""
    durable = cast("Any", copy.copy(node))
    wrapped = durable._awrap_tool_call  # noqa: SLF001  there is no public way to it

    async def call(request: Any, handler: Any) -> Any:
        async def through(asked: Any) -> Any:
            return await (handler(asked) if wrapped is None else wrapped(asked, handler))

        ctx = job("langgraph")
        if ctx is None:
            return await through(request)
        return await durable_tool(ctx, request, through, None, current_run())

    durable._awrap_tool_call = call  # noqa: SLF001
    # Its own function is bound to the node that it was made for.
    durable.func, durable.afunc = durable._func, durable._afunc  # noqa: SLF001
    return durable
