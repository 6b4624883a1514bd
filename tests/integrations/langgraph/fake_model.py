"""A model that says what its script has for the turn, however often it is asked, and streams it."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

USAGE: Any = {"input_tokens": 70, "output_tokens": 20, "total_tokens": 90}


def calls(*called: tuple[str, str, dict[str, Any]]) -> AIMessage:
    """Return what a model says that calls tools: id, name and arguments of each."""
    made = [{"id": id, "name": name, "args": args} for id, name, args in called]
    return AIMessage("", tool_calls=made, usage_metadata=USAGE)


def says(text: str) -> AIMessage:
    """Return what a model says."""
    return AIMessage(text, usage_metadata=USAGE)


def _silent(_: int) -> None: ...


class ScriptedModel(BaseChatModel):
    """Says its script, one message at each turn of a conversation."""

    script: list[AIMessage]
    asked: Callable[[int], Any] = _silent
    before_token: Callable[[str], Any] | None = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        """Return the model as it is."""
        del tools
        return self

    def _said(self, messages: Sequence[BaseMessage]) -> AIMessage:
        turn = sum(isinstance(each, AIMessage) for each in messages)
        self.asked(turn)
        return self.script[turn]

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._said(messages))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        said = self._said(messages)
        for word in str(said.content).split(" "):
            if self.before_token is not None:
                await self.before_token(word)
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=f"{word} " if word else ""))
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
        parts = [
            tool_call_chunk(
                id=each["id"], name=each["name"], args=json.dumps(each["args"]), index=number
            )
            for number, each in enumerate(said.tool_calls)
        ]
        last = AIMessageChunk(
            content="", tool_call_chunks=parts, usage_metadata=said.usage_metadata
        )
        yield ChatGenerationChunk(message=last)
