"""A model that is a script, so that the example needs no key and always says the same.

It is called as a real one is: with the messages so far and the schemas of the tools. It streams
what it writes, and says how many tokens it has read and written.
"""

import os
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from examples.agent.world import do
from perdure import ToolCall, process
from perdure.jobs.budget import ModelUsage

MODEL = "gpt-4o"


def pace() -> float:
    """Return the seconds that an answer takes."""
    return float(os.environ.get("PACE", "0.5"))


class Reply(Struct):
    text: str = ""
    calls: list[ToolCall] = []


NOTE = "Lamp 7, 39 USD, best reviews."
SCRIPT = [
    Reply(
        "I look for lamps and for what people say about them.",
        [
            ToolCall("search", {"words": "lamps under 50 USD"}, "c1"),
            ToolCall("search", {"words": "reviews of lamps"}, "c2"),
            ToolCall("read_file", {"name": "notes.txt"}, "c3"),
        ],
    ),
    Reply("I keep that.", [ToolCall("write_file", {"name": "notes.txt", "text": NOTE}, "c4")]),
    Reply("I buy it.", [ToolCall("pay", {"shop": "lamps.example", "usd": 39}, "c5")]),
    Reply("I tell Kim.", [ToolCall("send_mail", {"to": "kim", "text": "A lamp comes."}, "c6")]),
]
ENDS = {True: "Lamp 7 is bought, and Kim knows.", False: "GIVE UP: the shop has closed."}


async def complete(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], on_token: Callable[[str], None]
) -> tuple[Reply, ModelUsage]:
    """Return the answer of the model, and what it has used."""
    turn = sum(message["role"] == "assistant" for message in messages)
    do(f"the model answers turn {turn}")
    await process.sleep(pace())
    last = Reply(ENDS["closed" not in messages[0]["content"]])
    reply = SCRIPT[turn] if turn < len(SCRIPT) else last
    for word in reply.text.split():
        on_token(word)
    return reply, ModelUsage(
        model=MODEL,
        provider="openai",
        input_tokens=len(str(messages)) // 4,
        output_tokens=60,
        finish_reason="tool_call" if reply.calls else "stop",
    )
