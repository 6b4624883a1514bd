"""A model of the ADK that answers by a script, as often as it is asked.

It keeps no state: what it answers depends on how many answers of tools its request has.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types


def calls(name: str, id: str | None = None, **arguments: Any) -> types.Part:
    """Return a request to call a tool; Gemini gives it no id."""
    return types.Part(function_call=types.FunctionCall(id=id, name=name, args=arguments))


def says(text: str) -> types.Part:
    """Return an answer in words; it may hold what no valid text holds."""
    return types.Part.model_construct(text=text)


class ScriptedLlm(BaseLlm):
    """Answers by a script."""

    script: dict[int, list[types.Part]]
    before: Callable[[], Any] | None = None
    log: Callable[[str], None] | None = None

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for each in llm_request.contents for part in each.parts or ()]
        answered = sum(part.function_response is not None for part in parts)
        # After a transfer, the calls of others are told as texts.
        answered += sum("tool returned result" in (part.text or "") for part in parts)
        if self.log is not None:
            self.log(f"model {self.model} {answered}")
        if self.before is not None:
            await self.before()
        answer = self.script[answered]
        for part in answer if stream else ():
            for word in (part.text or "").split():
                yield _response([says(word)], partial=True)
        yield _response(answer)


def _response(parts: list[types.Part], partial: bool | None = None) -> LlmResponse:
    used = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=100, candidates_token_count=20, cached_content_token_count=60
    )
    return LlmResponse.model_construct(
        content=types.Content.model_construct(role="model", parts=parts),
        partial=partial,
        usage_metadata=used,
        finish_reason=types.FinishReason.STOP,
    )
