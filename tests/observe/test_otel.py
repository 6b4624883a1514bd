"""Traces, with the real SDK: a job is one trace, however often and wherever it runs."""

import json
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import perdure
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, SyncStepContext
from perdure.integrations.durable_calls import (
    ModelAnswer,
    ModelCall,
    ToolRun,
    message,
    model_call,
    text_part,
    tool_call,
)
from perdure.jobs.budget import ModelUsage
from perdure.jobs.state import JobState
from perdure.observe.otel import tracing
from tests.support.engine import durable, until


class Collected:
    """The spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the test")

    def named(self, name: str) -> list[ReadableSpan]:
        found = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)


@contextmanager
def collecting(*, contents: bool = False) -> Generator[Collected]:
    collected = Collected()
    with tracing(collected.provider, contents=contents):
        yield collected


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id  # type: ignore[union-attr]


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id  # type: ignore[union-attr]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@durable
async def test_a_job_belongs_to_the_span_that_submits_it_and_its_steps_to_its_run(app: App) -> None:
    with collecting() as collected:
        tracer = collected.tracer

        @app.step
        async def fetch(ctx: StepContext) -> None:
            tracer.start_span("inside").end()

        @app.step
        def in_thread(ctx: SyncStepContext) -> None:
            tracer.start_span("in a thread").end()

        @app.job
        async def crawl(ctx: JobContext) -> None:
            await fetch()
            await in_thread()

        async with app.running():
            with tracer.start_as_current_span("request") as request:
                handle = await app.submit(crawl(), tenant="acme")
            await handle.result()
    (run,) = collected.named("job crawl")
    (step,), (threaded,) = collected.named("step fetch"), collected.named("step in_thread")
    (inside,), (other) = collected.named("inside"), collected.named("in a thread")[0]
    assert parent_of(run) == request.get_span_context().span_id
    assert parent_of(step) == parent_of(threaded) == id_of(run)
    assert parent_of(inside) == id_of(step)
    assert parent_of(other) == id_of(threaded)
    assert len({trace_of(span) for span in (run, step, threaded, inside, other)}) == 1
    assert (
        dict(run.attributes or {}).items()
        >= {
            "perdure.job.id": handle.id,
            "perdure.tenant": "acme",
            "perdure.job.state": "COMPLETED",
        }.items()
    )


@durable
async def test_a_resume_in_another_worker_continues_the_trace_and_links_to_the_run_before(
    app: App,
) -> None:
    @app.job
    async def waits(ctx: JobContext) -> object:
        return await ctx.receive("go")

    with collecting() as first:
        async with app.running():
            handle = await app.submit(waits())
            await until(app, handle.id, JobState.WAITING)
    await app.send(handle.id, "go", 1)
    with collecting() as second:  # as in another program
        async with app.running():
            assert await handle.result() == 1
    before, after = first.named("job waits")[-1], second.named("job waits")[0]
    assert trace_of(after) == trace_of(before)
    assert [link.context.span_id for link in after.links] == [id_of(before)]


@durable
async def test_attempts_are_spans_and_retries_events_of_the_run(app: App) -> None:
    @app.step(retry=perdure.Retry(attempts=2, initial_delay="1ms"))
    async def fetch(ctx: StepContext) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("canary-1")

    @app.job
    async def crawl(ctx: JobContext) -> None:
        await fetch()

    with collecting() as collected:
        await app.run(crawl())
    first, second = collected.named("step fetch")
    assert [(span.attributes or {})["perdure.step.attempt"] for span in (first, second)] == [1, 2]
    assert first.status.status_code is trace.StatusCode.ERROR
    assert second.status.status_code is trace.StatusCode.UNSET
    (run,) = collected.named("job crawl")
    assert "step retried" in [event.name for event in run.events]
    assert "canary" not in "".join(span.to_json() for span in (first, second, run))


@durable
async def test_a_child_job_belongs_to_the_run_that_submits_it(app: App) -> None:
    @app.job
    async def child(ctx: JobContext) -> int:
        return 1

    @app.job
    async def parent(ctx: JobContext) -> int:
        return await child()

    with collecting() as collected:
        await app.run(parent())
    first, (run,) = collected.named("job parent")[0], collected.named("job child")
    assert parent_of(run) == id_of(first)
    assert trace_of(run) == trace_of(first)


@durable
async def test_effects_and_what_a_model_used_are_told_by_the_span_of_the_step(app: App) -> None:
    async def send(key: str) -> str:
        return "sent"

    @app.step
    async def think(ctx: StepContext) -> None:
        await ctx.effect("mail", send, target="kim")
        async with ctx.spend(usd=0.5, tokens=2000) as spent:
            used = ModelUsage(model="m-1", provider="acme", input_tokens=900, output_tokens=100)
            await spent.settle(usd=0.25, usage=used)

    @app.job
    async def agent(ctx: JobContext) -> None:
        await think()

    with collecting() as collected:
        handle = await app.submit(agent())
        async with app.running():
            await handle.result()
    (step,) = collected.named("step think")
    names = [event.name for event in step.events]
    assert names == ["effect intent", "effect done", "spend"]
    assert (
        dict(step.attributes or {}).items()
        >= {
            "gen_ai.request.model": "m-1",
            "gen_ai.provider.name": "acme",
            "gen_ai.usage.input_tokens": 900,
            "gen_ai.usage.output_tokens": 100,
        }.items()
    )
    assert dict(step.events[-1].attributes or {})["tokens"] == 1000


@durable
async def test_a_failed_job_is_an_error_and_nothing_is_stored_without_tracing(app: App) -> None:
    @app.step
    async def fail(ctx: StepContext) -> None:
        raise Permanent("never")

    @app.job
    async def doomed(ctx: JobContext) -> None:
        await fail()

    store = await app.store()
    async with app.running():
        plain = await app.submit(doomed())
        await until(app, plain.id, JobState.FAILED)
        assert await store.trace(plain.id) is None
    with collecting() as collected:
        async with app.running():  # the span ends with the run, after the job
            traced = await app.submit(doomed())
            await until(app, traced.id, JobState.FAILED)
    assert await store.trace(traced.id) is not None
    assert collected.named("job doomed")[-1].status.status_code is trace.StatusCode.ERROR


SAID = "canary-in-a-conversation"
USED = ModelUsage(
    model="m-1",
    provider="acme",
    input_tokens=9,
    output_tokens=3,
    answered_by="m-1-2026",
    agent="ann",
    finish_reason="stop",
)
MODEL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "acme",
    "gen_ai.request.model": "m-1",
    "gen_ai.response.model": "m-1-2026",
    "gen_ai.response.finish_reasons": ("stop",),
    "gen_ai.agent.name": "ann",
    "gen_ai.usage.input_tokens": 9,
    "gen_ai.usage.output_tokens": 3,
}


def gen_ai(collected: Collected, name: str) -> dict[str, object]:
    """Return the attributes of a span by the GenAI conventions; nothing was said in it."""
    (span,) = collected.named(name)
    assert SAID not in span.to_json()
    found = dict(span.attributes or {}).items()
    return {key: value for key, value in found if key.startswith("gen_ai.")}


def tool_attributes(name: str, id: str) -> dict[str, object]:
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": id,
    }


@durable
async def test_a_loop_of_ones_own_has_the_attributes_of_the_genai_conventions_and_no_contents(
    app: App,
) -> None:
    @app.step
    async def search(words: str) -> str:
        return f"found {words}"

    tools = perdure.Tools({"look": search})

    @app.job
    async def agent(ctx: JobContext, task: str) -> str:
        async def chat(step: StepContext) -> str:
            async with step.spend(calls=1) as spent:
                await spent.settle(usage=USED)
            return SAID

        await ctx.call("chat", chat, input={"messages": [task]})
        return (await tools.call("look", {"words": task}, id="call_7")).text

    with collecting() as collected:
        await app.run(agent(SAID))
    assert gen_ai(collected, "step call:chat").items() >= MODEL.items()
    assert gen_ai(collected, "step search") == tool_attributes("look", "call_7")
    assert gen_ai(collected, "job agent") == {}


@durable
async def test_the_calls_of_adapters_have_them_too(app: App) -> None:
    async def answer(step: StepContext) -> ModelAnswer:
        said = [message("assistant", text_part(SAID))]
        return ModelAnswer(value=SAID, usage=USED, messages=said)

    async def send(run: ToolRun) -> str:
        return f"sent {run.arguments['text']}"

    @app.job
    async def agent(ctx: JobContext, task: str) -> str:
        asked = ModelCall(model="m-1", provider="acme", agent="ann", price=lambda _: 0.0)
        await model_call(ctx, asked, answer)
        return await tool_call(ctx, "send", send, key="call_8", arguments={"text": task})

    with collecting() as collected:
        await app.run(agent(SAID))
    assert gen_ai(collected, "step call:chat:ann").items() >= MODEL.items()
    assert gen_ai(collected, "step call:tool:send") == tool_attributes("send", "call_8")
    assert gen_ai(collected, "job agent") == {}


@durable
async def test_what_was_said_is_traced_only_if_somebody_wants_it(app: App) -> None:
    async def answer(step: StepContext) -> ModelAnswer:
        said = [message("assistant", text_part(SAID))]
        return ModelAnswer(value=SAID, usage=USED, messages=said)

    @app.job
    async def agent(ctx: JobContext) -> None:
        asked = [message("user", text_part("why?"))]
        call = ModelCall(model="m-1", agent="ann", messages=asked, price=lambda _: 0.0)
        await model_call(ctx, call, answer)
        await ctx.call("chat:bare", bare)  # named like one, but no adapter has made it

    async def bare() -> str:
        return SAID

    with collecting(contents=True) as collected:
        await app.run(agent())
    (span,) = collected.named("step call:chat:ann")
    found = dict(span.attributes or {})
    assert json.loads(str(found["gen_ai.input.messages"])) == [message("user", text_part("why?"))]
    assert json.loads(str(found["gen_ai.output.messages"])) == [
        {**message("assistant", text_part(SAID)), "finish_reason": "stop"}
    ]
    assert gen_ai(collected, "step call:chat:bare") == {}
    with collecting() as collected:
        await app.run(agent())
    assert "gen_ai.input.messages" not in gen_ai(collected, "step call:chat:ann")
