"""Transcripts of agents from journals, in whichever form their models were called."""

from typing import Any

import pytest

from perdure.jobs.budget import ModelUsage
from perdure.jobs.model import JobEvent, JournalEntry
from perdure.jobs.state import StepState
from perdure.jobs.transcript import MODEL_CALLED, ModelTurn, TranscriptTurn, model_called, turns
from tests.support.store import entry

CALL = {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"words": "lamps"}}
TEXT = {"type": "text", "content": "I look."}


def made(*named: str, outputs: dict[int, Any] | None = None, log: Any = ()) -> list[TranscriptTurn]:
    entries = [entry(seq, id=id, name=id.partition("#")[0]) for seq, id in enumerate(named, 1)]
    return turns(entries, outputs or {}, log)


def answer(output: Any, id: str = "think#1") -> ModelTurn:
    (turn,) = made(id, outputs={1: output})
    assert turn.model is not None
    return turn.model


def parts(turn: ModelTurn) -> list[Any]:
    return [part for each in turn.output for part in each["parts"]]


def test_what_adapters_store_is_taken_as_it_is() -> None:
    told = {
        "model": "gpt-5",
        "usage": {"input_tokens": 9, "cache_read_tokens": 4},
        "cost_usd": None,
        "input": [{"role": "user", "parts": [TEXT]}],
        "output": [{"role": "assistant", "parts": [CALL]}],
    }
    found = answer({"gen_ai": told, "value": {"whatever": 1}}, "call:chat:analyst#turn 1")
    assert (found.model, found.usage["cache_read_tokens"], found.cost_usd) == ("gpt-5", 4, None)
    assert found.input[0]["parts"] == [TEXT]
    assert parts(found) == [CALL]


def test_what_another_version_stored_is_still_a_call_of_a_model() -> None:
    assert answer({"gen_ai": {"model": "gpt-5", "usage": "many"}}).model == "gpt-5"


def test_a_settled_usage_makes_any_step_a_call_of_a_model() -> None:
    used = ModelUsage(model="gpt-5", provider="openai", input_tokens=9, output_tokens=2)
    note = JobEvent(type=MODEL_CALLED, data=model_called("think#2", 1, used, 0.25))
    other = JobEvent(type="claimed")
    first, second = made("think#1", "think#2", outputs={2: "I look."}, log=[other, note])
    assert first.kind == "model"  # of the same name: it failed, or runs
    assert second.model is not None
    assert (second.model.model, second.model.cost_usd) == ("gpt-5", 0.25)
    assert second.model.usage["output_tokens"] == 2
    assert parts(second.model) == [TEXT]


OPENAI = {
    "model": "gpt-5",
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "c1", "function": {"name": "search", "arguments": {"words": "lamps"}}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}
ANTHROPIC = {
    "model": "gpt-5",
    "stop_reason": "tool_calls",
    "content": [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "search", "input": {"words": "lamps"}},
    ],
    "usage": {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 4},
}
RESPONSES = {
    "model": "gpt-5",
    "stop_reason": "tool_calls",
    "output": [
        {"type": "message", "content": [{"type": "output_text", "text": "I look."}]},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "search",
            "arguments": {"words": "lamps"},
        },
    ],
    "usage": {
        "input_tokens": 9,
        "output_tokens": 2,
        "input_tokens_details": {"cached_tokens": 4},
    },
}


@pytest.mark.parametrize("response", [OPENAI, ANTHROPIC, RESPONSES])
def test_a_response_of_a_provider_is_known_by_its_shape(response: dict[str, Any]) -> None:
    found = answer(response)
    assert parts(found) == [TEXT, CALL]
    assert (found.model, found.finish_reason) == ("gpt-5", "tool_calls")
    assert found.usage == {"input_tokens": 9, "output_tokens": 2, "cache_read_tokens": 4}


@pytest.mark.parametrize(
    "output",
    [
        {
            "text": "I look.",
            "calls": [{"name": "search", "arguments": {"words": "lamps"}, "id": "c1"}],
        },
        {
            "content": "I look.",
            "tool_calls": [{"name": "search", "args": {"words": "lamps"}, "id": "c1"}],
        },
        {"role": "assistant", "content": ["I look.", {"type": "tool_use", **CALL}]},
    ],
)
def test_an_answer_of_a_loop_of_ones_own_is_read_as_well_as_it_can_be(output: Any) -> None:
    assert parts(answer(output, "call:chat#turn 1")) == [TEXT, CALL]


@pytest.mark.parametrize("output", [None, 7, [], {}, {"content": 5, "tool_calls": "x"}, ""])
def test_an_answer_of_any_other_form_is_empty(output: Any) -> None:
    assert answer(output, "call:chat#1").output == []


def test_steps_between_are_tools_questions_or_steps_with_the_ids_of_their_calls() -> None:
    named = ("call:chat:ann#1", "call:tool:mail#c1", "call:approve:mail#c1", "search#c2", "load#1")
    found = made(*named)
    assert [(each.kind, each.name, each.call_id) for each in found] == [
        ("model", "ann", "1"),
        ("tool", "mail", "c1"),
        ("question", "mail", "c1"),
        ("step", "search", "c2"),
        ("step", "load", ""),
    ]


def test_a_job_without_models_has_none() -> None:
    outputs: dict[int, Any] = {
        1: {"content": "a page", "model": "T"},
        2: {"usage": {}, "output": []},
    }
    found = made("load#1", "save#1", outputs=outputs)
    assert [each.model for each in found] == [None, None]


def test_only_what_is_known_of_a_usage_is_logged() -> None:
    data = model_called("think#1", 2, ModelUsage(model="m", input_tokens=3), 0.5)
    assert data == {"step": "think#1", "attempt": 2, "usd": 0.5, "model": "m", "input_tokens": 3}


def _states() -> list[JournalEntry]:
    return [entry(1, id="call:chat#1", name="call:chat", state=StepState.RUNNING)]


def test_a_call_that_runs_has_no_answer_yet() -> None:
    (turn,) = turns(_states(), {}, ())
    assert turn.model == ModelTurn()
