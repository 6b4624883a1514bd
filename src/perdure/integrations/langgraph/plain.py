"""Values of LangGraph as plain JSON values, and back: messages, commands, results of nodes.

Plain values and messages stay readable in the journal, and keep NUL characters and lone surrogates.
Anything else is what LangGraph's own serializer makes of it, as base64.
"""

import base64
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, cast

from perdure.base.extra import extra

with extra("langgraph", "a durable graph"):
    from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.types import Command, Send

_MARK: Final = "$langgraph"
_SERDE: Final = JsonPlusSerializer()


def dump(value: Any) -> Any:
    """Return a value as plain JSON values."""
    if value is None or type(value) in (str, bool, int):
        return value
    if isinstance(value, str) and not isinstance(value, Enum):  # as LangChain's own texts
        return str.__str__(value)
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [dump(each) for each in cast("list[Any]", value)]
    if type(value) is dict and _is_plain(cast("dict[Any, Any]", value)):
        return {name: dump(each) for name, each in cast("dict[str, Any]", value).items()}
    return _marked(value)


def _is_plain(value: Mapping[Any, Any]) -> bool:
    return _MARK not in value and all(type(name) is str for name in value)


def _marked(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {_MARK: "message", "value": dump(message_to_dict(value))}
    if type(value) is tuple:
        return {_MARK: "tuple", "value": [dump(each) for each in cast("tuple[Any, ...]", value)]}
    if isinstance(value, Command):
        fields, made = ("graph", "update", "resume", "goto"), cast("Any", value)
        return {_MARK: "command", "value": {name: dump(getattr(made, name)) for name in fields}}
    if isinstance(value, Send) and value.timeout is None:
        return {_MARK: "send", "value": [value.node, dump(value.arg)]}
    kind, data = _SERDE.dumps_typed(value)
    return {_MARK: kind, "value": base64.b64encode(data).decode()}


def load(plain: Any) -> Any:
    """Return the value of plain JSON values."""
    if isinstance(plain, list):
        return [load(each) for each in cast("list[Any]", plain)]
    if not isinstance(plain, dict):
        return plain
    found = cast("dict[str, Any]", plain)
    if _MARK not in found:
        return {name: load(each) for name, each in found.items()}
    return _unmarked(found[_MARK], found["value"])


def _unmarked(kind: str, value: Any) -> Any:
    match kind:
        case "message":
            (message,) = messages_from_dict([load(value)])
            return message
        case "tuple":
            return tuple(load(value))
        case "command":
            return cast("Any", Command)(**load(value))
        case "send":
            return Send(value[0], load(value[1]))
        case _:
            return _SERDE.loads_typed((kind, base64.b64decode(value)))
