"""A client of the Agent Framework that answers by a script, as often as it is asked.

It keeps no state: what it answers depends on how many answers of tools its messages have.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)

USED = {
    "input_token_count": 100,
    "output_token_count": 20,
    "total_token_count": 120,
    "cache_read_input_token_count": 60,
}


def calls(name: str, id: str, **arguments: Any) -> Content:
    """Return a request to call a tool."""
    return Content.from_function_call(call_id=id, name=name, arguments=arguments)


def says(text: str) -> Content:
    """Return an answer in words."""
    return Content.from_text(text)


class ScriptedClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Answers by a script."""

    def __init__(
        self,
        name: str,
        script: dict[int, list[Content]],
        before: Callable[[], Any] | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.model = name
        self._script = script
        self._before = before
        self._log = log

    def _inner_get_response(
        self, *, messages: Any, stream: bool, options: Any, **kwargs: Any
    ) -> Any:
        if not stream:
            return self._whole(messages)
        return ResponseStream(self._updates(messages), finalizer=ChatResponse.from_updates)

    async def _answer(self, messages: Any) -> list[Content]:
        parts = [part for each in messages for part in each.contents]
        answered = sum(part.type == "function_result" for part in parts)
        if self._log is not None:
            self._log(f"model {self.model} {answered}")
        if self._before is not None:
            await self._before()
        return self._script[answered]

    async def _whole(self, messages: Any) -> ChatResponse[Any]:
        answer = Message("assistant", await self._answer(messages))
        used: Any = USED
        return ChatResponse(messages=[answer], usage_details=used, finish_reason="stop")

    async def _updates(self, messages: Any) -> AsyncIterator[ChatResponseUpdate]:
        for content in await self._answer(messages):
            words = (content.text or "").split() if content.type == "text" else []
            for word in words:
                yield ChatResponseUpdate(contents=[says(word)], role="assistant")
            if not words:
                yield ChatResponseUpdate(contents=[content], role="assistant")
        used: Any = USED
        yield ChatResponseUpdate(contents=[Content.from_usage(used)], role="assistant")
