"""OpenTelemetry traces: a job is a trace, each of its runs and each attempt at a step a span.

    with tracing():
        app.serve_sync()

The span that submits a job is stored with it. So each run of the job, on whichever machine, is a
child of that span, in the same trace, and links to the run before it: to the one that was killed,
or that ended when the job began to wait. A child job belongs to the run that submitted it.
What a step does with instrumented libraries is below its span, in threads too.

Effects and questions to people are events of the span in which they happen. Names are those of
jobs and steps; arguments, results and messages of errors are left out. So is what people and models
say to each other, unless `contents=True`.
"""

import contextlib
from collections.abc import Generator
from itertools import count
from threading import Lock
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.base import telemetry
from perdure.base.extra import extra
from perdure.base.telemetry import Event, Values
from perdure.engine import events
from perdure.jobs.budget import ModelUsage
from perdure.jobs.definition import TOOL
from perdure.jobs.model import JobTrace

with extra("otel", "tracing"):
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

_FAILED: Final = frozenset({"failed", "timed out"})
_BAD_ENDS: Final = frozenset({"RunFailed", "NeedsAttention"})
_NOTES: Final = {
    **{event: f"effect {state.lower()}" for state, event in events.EFFECT.items()},
    events.EFFECT_REUSE: "effect not repeated",
    events.APPROVAL_ASK: "approval asked",
    events.APPROVAL_DECIDE: "approval decided",
    events.STEP_RETRY: "step retried",
    events.STEP_CHECKPOINT: "checkpoint",
    events.JOB_STUCK: "job stuck",
    events.LEASE_LOSE: "lease lost",
    events.UNDO_FAIL: "undo failed",
}
# What an event of a span says; texts of users are not among it.
_SHOWN: Final = ("step", "kind", "key", "risk", "state", "verdict", "channel")
_MEASURED: Final = ("attempt", "delay", "bytes", "number")

_handlers = count(1)


@contextlib.contextmanager
def tracing(
    provider: TracerProvider | None = None, *, contents: bool = False
) -> Generator[None, None, None]:
    """Trace jobs inside the block.

    Args:
        provider: Makes the spans; by default the global one, which `opentelemetry-instrument` or
            your program has set.
        contents: Whether the spans of model calls have their messages, which may hold anything
            that people and tools have said.
    """
    tracer = trace.get_tracer("perdure", tracer_provider=provider)
    spans, id = _Spans(tracer, contents=contents), ("perdure.observe.otel", next(_handlers))
    telemetry.attach_many(id, spans.heard, spans.hear)
    try:
        yield
    finally:
        with contextlib.suppress(LookupError):  # a handler that failed was detached
            telemetry.detach(id)
        spans.end_all()


class _Spans:
    """The spans of the runs and attempts of this OS process."""

    def __init__(self, tracer: Tracer, *, contents: bool) -> None:
        self._tracer = tracer
        self._runs: dict[str, tuple[int, Span]] = {}  # by job, with the epoch
        self._steps: dict[tuple[str, str], Span] = {}  # by job and step
        self._lock = Lock()
        self.heard = {
            events.JOB_CARRY: self._carry,
            events.JOB_ENTER: self._enter_job,
            events.JOB_LEAVE: self._leave_job,
            events.JOB_END: self._end_job,
            events.JOB_PARK: self._end_job,
            events.JOB_RELEASE: self._end_job,
            events.STEP_ENTER: self._enter_step,
            events.STEP_STOP: self._leave_step,
            events.SPEND: self._spend,
            **({events.MODEL_ANSWER: self._say} if contents else {}),
            **dict.fromkeys(_NOTES, None),
        }

    def hear(self, event: Event, measured: Values, facts: Values, _config: object) -> None:
        """Handle a telemetry event."""
        handler = self.heard[event]
        if handler is None:
            self._note(_NOTES[event], measured, facts)
        else:
            handler(measured, facts)

    def end_all(self) -> None:
        """End what is still open."""
        with self._lock:
            left = [*self._steps.values(), *[span for _, span in self._runs.values()]]
            self._steps.clear()
            self._runs.clear()
        for span in left:
            span.end()

    # Jobs

    def _carry(self, _measured: Values, facts: Values) -> None:
        """Give a job that is submitted the span of its submitter."""
        propagate.inject(facts["carrier"])

    def _enter_job(self, measured: Values, facts: Values) -> None:
        found: JobTrace | None = facts["trace"]
        above = None if found is None else _context(found.parent)
        links = [] if found is None or found.last is None else _links(found.last)
        span = self._tracer.start_span(
            f"job {facts['name']}",
            context=above or contexts.Context(),
            kind=SpanKind.CONSUMER,
            links=links,
            attributes={
                **_about(facts),
                "perdure.job.epoch": facts["epoch"],
                "perdure.job.undoing": facts["state"] == "COMPENSATING",
                "perdure.job.claims": measured["claims"],
            },
        )
        if facts["parent"] is not None:
            span.set_attribute("perdure.job.parent", facts["parent"])
        with self._lock:
            self._runs[facts["job_id"]] = facts["epoch"], span
        # In the context of the process of this run, which ends with it.
        current = trace.set_span_in_context(span)
        contexts.attach(current)
        propagate.inject(facts["carrier"], context=current)

    def _end_job(self, measured: Values, facts: Values) -> None:
        """Say on the span of a run what became of the job; `_leave_job` ends it."""
        if (span := self._run(facts)) is not None:
            span.set_attribute("perdure.job.state", facts["state"])
            span.set_attribute("perdure.job.worked_seconds", measured["worked"])

    def _leave_job(self, _measured: Values, facts: Values) -> None:
        with self._lock:
            epoch, span = self._runs.get(facts["job_id"], (0, None))
            if span is None or epoch != facts["epoch"]:  # another run has it by now
                return
            del self._runs[facts["job_id"]]
        span.set_attribute("perdure.run.outcome", facts["outcome"])
        if facts["outcome"] in _BAD_ENDS:
            span.set_status(Status(StatusCode.ERROR, facts["outcome"]))
        span.end()

    # Steps

    def _enter_step(self, measured: Values, facts: Values) -> None:
        run = self._run(facts)
        above = contexts.Context() if run is None else trace.set_span_in_context(run)
        span = self._tracer.start_span(
            f"step {facts['step_name']}",
            context=above,
            attributes={
                **_about(facts),
                "perdure.step.id": facts["step"],
                "perdure.step.name": facts["step_name"],
                "perdure.step.attempt": measured["attempt"],
                **_tool_call(facts),
            },
        )
        with self._lock:
            former = self._steps.pop((facts["job_id"], facts["step"]), None)
            self._steps[facts["job_id"], facts["step"]] = span
        if former is not None:
            former.end()
        contexts.attach(trace.set_span_in_context(span))  # of the process of this attempt

    def _leave_step(self, _measured: Values, facts: Values) -> None:
        with self._lock:
            span = self._steps.pop((facts["job_id"], facts["step"]), None)
        if span is None:
            return
        span.set_attribute("perdure.step.outcome", facts["outcome"])
        if facts["outcome"] in _FAILED:
            span.set_status(Status(StatusCode.ERROR, facts["outcome"]))
        span.end()

    def _spend(self, measured: Values, facts: Values) -> None:
        """Add what a model has used to the span of its step."""
        span = self._steps.get((facts["job_id"], facts["step"]))
        if span is None:
            return
        span.add_event("spend", {name: measured[name] for name in ("usd", "tokens", "calls")})
        used = facts["usage"]
        if used is not None:
            span.set_attributes(_model_call(used))

    def _say(self, _measured: Values, facts: Values) -> None:
        """Add what a model was asked and has answered to the span of its step."""
        span = self._steps.get((facts["job_id"], facts["step"]))
        if span is not None:
            span.set_attributes(_messages(facts["output"]))

    # What both have

    def _run(self, facts: Values) -> Span | None:
        return self._runs.get(facts["job_id"], (0, None))[1]

    def _note(self, name: str, measured: Values, facts: Values) -> None:
        """Add an event to the span of the step, or else of the run, or else to the current one."""
        step = self._steps.get((facts["job_id"], str(facts.get("step"))))
        span = step or self._run(facts) or trace.get_current_span()
        said = {f"perdure.{key}": facts[key] for key in _SHOWN if key in facts}
        said |= {f"perdure.{key}": measured[key] for key in _MEASURED if key in measured}
        span.add_event(name, said)


def _about(facts: Values) -> dict[str, Any]:
    return {
        "perdure.job.id": facts["job_id"],
        "perdure.job.name": facts["name"],
        "perdure.tenant": facts["tenant"],
        "perdure.queue": facts["queue"],
        "perdure.worker": facts["worker"],
    }


def _model_call(used: ModelUsage) -> dict[str, Any]:
    """Return the attributes of a model call, by OpenTelemetry's GenAI conventions."""
    named: dict[str, Any] = {
        "gen_ai.response.model": used.answered_by,
        "gen_ai.agent.name": used.agent,
        "gen_ai.response.finish_reasons": [used.finish_reason] if used.finish_reason else "",
        "gen_ai.usage.cache_read.input_tokens": used.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": used.cache_write_tokens,
    }
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": used.provider or "unknown",
        "gen_ai.request.model": used.model,
        "gen_ai.usage.input_tokens": used.input_tokens,
        "gen_ai.usage.output_tokens": used.output_tokens,
        **{name: value for name, value in named.items() if value},
    }


class _Said(Struct):
    """The messages of a model call, as adapters store them."""

    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    finish_reason: str = ""


class _Answer(Struct):
    gen_ai: _Said


def _messages(output: bytes | None) -> dict[str, str]:
    """Return the messages of a call; none, if no adapter has made it."""
    try:
        said = msgspec.json.decode(output or b"null", type=_Answer).gen_ai
    except msgspec.MsgspecError:
        return {}
    answers = [{**each, "finish_reason": said.finish_reason} for each in said.output]
    return {
        "gen_ai.input.messages": msgspec.json.encode(said.input).decode(),
        "gen_ai.output.messages": msgspec.json.encode(answers).decode(),
    }


def _tool_call(facts: Values) -> dict[str, Any]:
    """Return the attributes of a call of an agent's tool; none for any other step."""
    name = facts["step_name"]
    tool = facts["tool"] or (name.removeprefix(TOOL) if name.startswith(TOOL) else "")
    if not tool:
        return {}
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": facts["step"].rpartition("#")[2],
    }


def _context(traceparent: str) -> contexts.Context:
    return propagate.extract({"traceparent": traceparent}, context=contexts.Context())


def _links(traceparent: str) -> list[Link]:
    found = trace.get_current_span(_context(traceparent)).get_span_context()
    return [Link(found)] if found.is_valid else []
