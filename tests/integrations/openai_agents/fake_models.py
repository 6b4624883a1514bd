"""A model of the OpenAI Agents SDK that answers by a script, as often as it is asked.

It keeps no state: what it answers depends on how many tool calls and handoffs its input has.
So it says the same after a restart.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agents import Model, ModelResponse, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

Script = Mapping[int, "list[ResponseOutputItem]"]


def calls(name: str, id: str, **arguments: Any) -> ResponseFunctionToolCall:
    """Return a request to call a tool."""
    return ResponseFunctionToolCall(
        arguments=json.dumps(arguments), call_id=id, name=name, type="function_call"
    )


def says(text: str) -> ResponseOutputMessage:
    """Return an answer in words; it may hold what no valid text holds."""
    part = ResponseOutputText.model_construct(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage.model_construct(
        id="msg", type="message", role="assistant", status="completed", content=[part]
    )


class ScriptedModel(Model):
    """Answers by a script."""

    def __init__(
        self,
        name: str,
        script: Script,
        before: Callable[[], Any] | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.model = name
        self._script = script
        self._before = before
        self._log = log

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        output = await self._answer(input)
        return ModelResponse(output=output, usage=_usage(), response_id=None)

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[ResponseStreamEvent]:
        output = await self._answer(input)
        for number, word in enumerate(_words(output)):
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                content_index=0,
                output_index=0,
                item_id="msg",
                delta=word,
                logprobs=[],
                sequence_number=number,
            )
        yield _completed(self.model, output)

    async def _answer(self, input: Any) -> list[ResponseOutputItem]:
        made = 0 if isinstance(input, str) else sum("call_id" in each for each in input) // 2
        if self._log is not None:
            self._log(f"model {self.model} {made}")
        if self._before is not None:
            await self._before()
        return self._script[made]


def _usage() -> Usage:
    details = InputTokensDetails(cached_tokens=60, cache_write_tokens=0)
    return Usage(
        requests=1,
        input_tokens=100,
        output_tokens=20,
        total_tokens=120,
        input_tokens_details=details,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
    )


def _words(output: list[ResponseOutputItem]) -> list[str]:
    parts = [part for each in output if each.type == "message" for part in each.content]
    texts = [part.text for part in parts if isinstance(part, ResponseOutputText)]
    return [word for text in texts for word in text.split(" ")]


def _completed(model: str, output: list[ResponseOutputItem]) -> ResponseCompletedEvent:
    usage = _usage()
    response = Response.model_construct(
        id="resp",
        created_at=0,
        model=model,
        object="response",
        output=output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
        usage=ResponseUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            total_tokens=usage.total_tokens,
            input_tokens_details=usage.input_tokens_details,
            output_tokens_details=usage.output_tokens_details,
        ),
    )
    return ResponseCompletedEvent.model_construct(
        type="response.completed", response=response, sequence_number=1000
    )
