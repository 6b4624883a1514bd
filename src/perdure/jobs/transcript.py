"""What an agent said and did, from the journal of its job, for people to read; pure.

A model call is a step, in whichever way it was made. Which steps are such calls is known

- by what adapters of frameworks store: an output with `gen_ai`, see `integrations.durable_calls`,
- by the line that a settled usage leaves in the log (`MODEL_CALLED`), which a loop of your own gets
  with `spent.settle(usage=…)`,
- by its name, `call:chat`, or by an output that has the shape of a provider's response.

Messages have one form, that of OpenTelemetry's GenAI conventions. Those of other forms are read as
well as they can be: a transcript is for people, and nothing else depends on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, field

from perdure.base.visible import visible
from perdure.jobs.budget import ModelUsage
from perdure.jobs.definition import ASK, CHAT, CLOSURE, TOOL
from perdure.jobs.model import EntryKind, JobEvent, JournalEntry

Message: TypeAlias = dict[str, Any]
TurnKind: TypeAlias = Literal["model", "tool", "question", "step"]

MODEL_CALLED: Final = "model.called"
_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def model_called(step: str, attempt: int, usage: ModelUsage, usd: float) -> dict[str, Any]:
    """Return what the log says about a model call, once what it used is settled."""
    used = {
        # A provider may answer with any text, and the log only keeps what a database accepts.
        name: visible(value) if isinstance(value, str) else value
        for name, value in msgspec.to_builtins(usage).items()
        if value
    }
    return {"step": step, "attempt": attempt, "usd": usd, **used}


class ModelTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model call."""

    model: str = ""
    provider: str = ""
    answered_by: str = ""
    agent: str = ""
    finish_reason: str = ""
    cost_usd: float | None = None
    usage: dict[str, int] = field(default_factory=dict[str, int])
    input: list[Message] = field(default_factory=list[Message])  # what it adds to the history
    output: list[Message] = field(default_factory=list[Message])  # the answer


class TranscriptTurn(Struct, frozen=True, kw_only=True):
    """One entry of a transcript: a model call, a tool call, a question, or another step."""

    kind: TurnKind
    entry: JournalEntry
    name: str  # of the tool, or of the agent
    call_id: str  # that a model gave the tool call
    model: ModelTurn | None = None


def turns(
    entries: Sequence[JournalEntry], outputs: Mapping[int, Any], log: Iterable[JobEvent]
) -> list[TranscriptTurn]:
    """Return the transcript of a part of a journal.

    Args:
        entries: The entries, in order.
        outputs: The outputs of those that have one, by `seq`, as plain values for people.
        log: The log of the job.
    """
    used = {str(each.data["step"]): each.data for each in log if each.type == MODEL_CALLED}
    steps = [each for each in entries if each.kind is EntryKind.STEP]
    found = [_model_turn(each, outputs.get(each.seq), used.get(each.id)) for each in steps]
    models = {each.name for each, model in zip(steps, found, strict=True) if model is not None}
    return [_turn(each, model, models) for each, model in zip(steps, found, strict=True)]


def _turn(entry: JournalEntry, model: ModelTurn | None, models: set[str]) -> TranscriptTurn:
    name, _, key = entry.id.rpartition("#")
    if model is None and entry.name in models:  # it runs, or has failed
        model = ModelTurn()
    kind: TurnKind = "model" if model is not None else "step"
    for prefix, meant in ((TOOL, "tool"), (ASK, "question")):
        if entry.name.startswith(prefix):
            kind = cast("TurnKind", meant)
    for prefix in (CHAT, TOOL, ASK, CLOSURE):
        name = name.replace(prefix, "", 1)
    call_id = "" if key.isdecimal() and kind == "step" else key
    return TranscriptTurn(kind=kind, entry=entry, name=name, call_id=call_id, model=model)


def _model_turn(
    entry: JournalEntry, output: Any, used: Mapping[str, Any] | None
) -> ModelTurn | None:
    """Return the model call that a step is; None if it is none."""
    told = _of(output, "gen_ai")
    if isinstance(told, dict):
        return _stored(cast("dict[str, Any]", told))
    is_chat = entry.name.startswith(CHAT) or entry.name == CHAT.rstrip(":")
    if used is None and not is_chat and not _is_response(output):
        return None
    facts = {**_facts(output), **_used(used or {})}
    parts = list(_parts(output))
    return ModelTurn(**facts, output=[{"role": "assistant", "parts": parts}] if parts else [])


def _stored(told: dict[str, Any]) -> ModelTurn:
    try:
        return msgspec.convert(told, ModelTurn, strict=False)
    except msgspec.ValidationError:  # written by another version
        return ModelTurn(model=str(told.get("model", "")))


def _used(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the log says about a call."""
    if not data:
        return {}
    texts = ("model", "provider", "answered_by", "agent", "finish_reason")
    known = {name: str(data[name]) for name in texts if data.get(name)}
    usage = {name: int(data.get(name, 0)) for name in _COUNTS}
    return {**known, "usage": usage, "cost_usd": data.get("usd")}


# Responses of providers


def _is_response(output: Any) -> bool:
    """Whether a value has the shape of a provider's response: an answer, a model, a usage."""
    match output:
        case {"model": str(), "usage": dict(), "choices": list()}:
            return True
        case {"model": str(), "usage": dict(), "content": list()}:
            return True
        case {"model": str(), "usage": dict(), "output": list()}:
            return True
        case _:
            return False


def _facts(output: Any) -> dict[str, Any]:
    """Return the model and the usage that a response names itself."""
    if not isinstance(output, dict):
        return {}
    response = cast("dict[str, Any]", output)
    found: dict[str, Any] = {}
    if isinstance(model := response.get("model"), str):
        found["model"] = model
    reason = response.get("stop_reason") or _first(response, "choices").get("finish_reason")
    if isinstance(reason, str):
        found["finish_reason"] = reason
    if isinstance(usage := response.get("usage"), dict):
        found["usage"] = _counted(cast("dict[str, Any]", usage))
    return found


def _counted(usage: dict[str, Any]) -> dict[str, int]:
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = usage.get("cache_read_input_tokens") or _of(details, "cached_tokens") or 0
    given = {
        "input_tokens": usage.get("input_tokens", usage.get("prompt_tokens")),
        "output_tokens": usage.get("output_tokens", usage.get("completion_tokens")),
        "cache_read_tokens": cached,
    }
    return {name: value for name, value in given.items() if isinstance(value, int)}


def _first(value: dict[str, Any], name: str) -> dict[str, Any]:
    listed = value.get(name)
    found = cast("list[Any]", listed)[0] if isinstance(listed, list) and listed else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _of(value: Any, *names: str) -> Any:
    """Return the first of these fields that a value has."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name in names:
            if fields.get(name) not in (None, ""):
                return fields[name]
    return None


# Answers in whichever form


def _parts(value: Any) -> Iterator[Message]:
    """Yield the parts of an answer: texts, and tool calls."""
    match value:
        case str():
            if value:
                yield {"type": "text", "content": value}
        case list():
            for each in cast("list[Any]", value):
                yield from _parts(each)
        case {"choices": [{"message": message}, *_]}:
            yield from _parts(message)
        case {"type": "tool_call" | "tool_use" | "function_call" | "tool-call"}:
            yield _call(cast("dict[str, Any]", value))
        case dict():
            yield from _of_fields(cast("dict[str, Any]", value))
        case _:
            pass


_TEXTS: Final = ("text", "content", "output", "parts", "message", "answer")
_CALLS: Final = ("tool_calls", "calls", "function_calls")


def _of_fields(value: dict[str, Any]) -> Iterator[Message]:
    thought = _of(value, "thinking", "reasoning", "reasoning_content")
    if isinstance(thought, str):
        yield {"type": "reasoning", "content": thought}
    yield from _parts(_of(value, *_TEXTS))
    listed = _of(value, *_CALLS)
    for each in cast("list[Any]", listed) if isinstance(listed, list) else []:
        if isinstance(each, dict):
            yield _call(cast("dict[str, Any]", each))
    if isinstance(tool := value.get("tool"), str) and tool:  # one at most, in two fields
        yield {"type": "tool_call", "id": "", "name": tool, "arguments": _of(value, *_GIVEN)}


_GIVEN: Final = ("arguments", "args", "input", "argument")


def _call(value: dict[str, Any]) -> Message:
    inner = value.get("function")
    about = cast("dict[str, Any]", inner) if isinstance(inner, dict) else value
    return {
        "type": "tool_call",
        "id": _of(value, "id", "call_id", "tool_call_id") or "",
        "name": _of(about, "name", "tool_name", "tool") or "",
        "arguments": _of(about, *_GIVEN),
    }
