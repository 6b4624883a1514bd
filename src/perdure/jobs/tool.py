"""Steps and jobs as tools of a language model: their schemas, and calls by name.

    tools = Tools([search, send_mail])
    reply = await think(history, tools.schemas("anthropic"))
    answer = await tools.call(reply.tool, reply.arguments, id=reply.call_id)

An unknown tool, wrong arguments, a failing tool and a rejected approval are returned to the model
as answers, and do not fail the job. Cancellation, waiting for a person and an exhausted budget are
no answers: they affect the job as with any other call.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, overload

from msgspec import Struct

from perdure.base.codec import digest, write_plain
from perdure.base.errors import (
    ApprovalRejected,
    ArgumentError,
    DefinitionError,
    JobFailed,
    NotInJob,
    StepFailed,
    Unstorable,
)
from perdure.base.schema import inlined
from perdure.jobs.definition import (
    Call,
    CallOptions,
    JobCall,
    JobDefinition,
    JobScope,
    Step,
    scope,
)
from perdure.jobs.failure import type_name

R = TypeVar("R")

Tool: TypeAlias = Step[..., Any] | JobDefinition[..., Any]
ToolShape: TypeAlias = Literal["openai", "openai-responses", "anthropic", "mcp"]

LONGEST_TOOL_NAME: Final = 64  # of the providers
_LONGEST_ID: Final = 200
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_REJECTED: Final = type_name(ApprovalRejected)


class ToolCall(Struct, frozen=True):
    """A tool call, as a model makes it.

    Attributes:
        name: The name of the tool.
        arguments: By name; or the JSON text of that, as some providers give it.
        id: The tool call id that the model gave; it identifies the step.
    """

    name: str
    arguments: Mapping[str, Any] | str = {}
    id: str | None = None


class ToolAnswer(Struct, frozen=True):
    """What a model is told about a call.

    Attributes:
        text: The result: as it is, if it is a text, and else as JSON. Or why there is none.
        failed: Whether there is none.
    """

    text: str
    failed: bool = False

    def __str__(self) -> str:
        return self.text


class Tools:
    """Steps and jobs that a model may call by their names."""

    def __init__(self, tools: Iterable[Tool] | Mapping[str, Tool]) -> None:
        """Take the tools; a mapping gives them names of its own.

        Raises:
            DefinitionError: One is neither a step nor a job, or two have the same name.
        """
        self._tools: dict[str, Tool] = {}
        for name, tool in _named(tools):
            if not isinstance(cast("object", tool), Step | JobDefinition):
                raise DefinitionError(f"a tool is a step or a job, not {tool!r}")
            if name in self._tools:
                raise DefinitionError(f"two tools have the name {name!r}: give one another name")
            self._tools[name] = tool

    def __repr__(self) -> str:
        return f"<Tools {', '.join(self._tools)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple(self._tools)

    def schemas(self, shape: ToolShape = "openai") -> list[dict[str, Any]]:
        """Return the schemas of the tools, in the format of a provider's API.

        A docstring describes the tool, and its `Args:` the parameters.

        Args:
            shape: "openai" for chat completions, "openai-responses", "anthropic" or "mcp".
        """
        made = _SHAPES[shape]
        return [made(name, *_described(tool)) for name, tool in self._tools.items()]

    async def call(
        self, name: str, arguments: Mapping[str, Any] | str, *, id: str | None = None
    ) -> ToolAnswer:
        """Call a tool in the code of a job; return what the model is told.

        Args:
            name: The name, as the model wrote it.
            arguments: By name, or the JSON text of that.
            id: The model's id of the call, by which the journal knows it.

        Raises:
            NotInJob: No code of a job runs here.
        """
        (answer,) = await self.call_all([ToolCall(name, arguments, id)])
        return answer

    async def call_all(self, calls: Iterable[ToolCall]) -> list[ToolAnswer]:
        """Call several tools at a time; return an answer for each, in this order.

        Raises:
            NotInJob: No code of a job runs here.
        """
        here = _job()
        begun = [self._begin(call, here) for call in calls]
        results = iter(
            await here.gather(
                *(each for each, _ in begun if not isinstance(each, ToolAnswer)),
                return_exceptions=True,
            )
        )
        return [
            each if isinstance(each, ToolAnswer) else _answer(cast("Tool", tool), next(results))
            for each, tool in begun
        ]

    def _begin(self, asked: ToolCall, here: JobScope) -> tuple[Any, Tool | None]:
        """Return the operation of a call and its tool; or the answer, if nothing can be called."""
        tool = self._tools.get(asked.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolAnswer(
                f"there is no tool {asked.name!r}; the tools are: {known}", True
            ), None
        try:
            call = call_of(tool, asked.arguments)
        except (ArgumentError, Unstorable) as error:
            return ToolAnswer(str(error), failed=True), None
        try:
            return here.start(_as_tool(call, asked.name, _key(asked.id))), tool
        except ValueError:  # a model that uses an id twice: by their order, as without an id
            return here.start(_as_tool(call, asked.name, None)), tool


def _named(tools: Iterable[Tool] | Mapping[str, Tool]) -> Iterator[tuple[str, Tool]]:
    if isinstance(tools, Mapping):
        yield from cast("Mapping[str, Tool]", tools).items()
        return
    for tool in tools:
        name = str(getattr(tool, "name", ""))
        yield _NOT_IN_NAMES.sub("_", name)[:LONGEST_TOOL_NAME], tool


def _job() -> JobScope:
    here = scope.get()
    if here is None or isinstance(here, str):
        place = "here" if here is None else f"inside the step {here}"
        raise NotInJob(f"tools are called in the code of a job, and no such code runs {place}")
    return here


@overload
def call_of(tool: JobDefinition[..., Any], given: Mapping[str, Any] | str) -> JobCall[Any]: ...
@overload
def call_of(tool: Tool, given: Mapping[str, Any] | str) -> Call[Any]: ...
def call_of(tool: Tool, given: Mapping[str, Any] | str) -> Call[Any]:
    """Return a tool call with the arguments that a model wrote.

    Raises:
        ArgumentError: They do not fit; every reason is named.
        Unstorable: They are not JSON.
    """
    text = given if isinstance(given, str) else write_plain(dict(given))
    args, kwargs = tool.parameters.unpack_json(text if text.strip() else "{}")
    return tool(*args, **kwargs)


def _as_tool(call: Call[Any], name: str, key: str | None) -> Call[Any]:
    """Return a call with its key, and with the name by which a model calls it, for traces."""
    made = call.use()
    return type(made)(made.definition, made.args, made.kwargs, CallOptions(id=key, tool=name))


def _key(id: str | None) -> str | None:
    """Return an id of a model as the key of a step, whatever the model wrote."""
    if not id:
        return None
    if len(id) > _LONGEST_ID or not id.isprintable():
        return digest(id)[:32]
    return f"call_{id}" if id.isdigit() else id  # plain numbers are ordinals


def _answer(tool: Tool, result: Any) -> ToolAnswer:
    """Return what a model is told about a result, or about the exception in its place."""
    if isinstance(result, StepFailed):
        how = "rejected" if result.error_type == _REJECTED else f"failed: {result.error_type}"
        return ToolAnswer(f"{how}: {result.error}", failed=True)
    if isinstance(result, JobFailed):
        return ToolAnswer(f"failed: {result.failure}", failed=True)
    if isinstance(result, tool.raises):
        return ToolAnswer(f"failed: {type_name(type(result))}: {result}", failed=True)
    if isinstance(result, BaseException):
        raise result
    return ToolAnswer(result if isinstance(result, str) else write_plain(result).decode())


# Schemas


def _described(tool: Tool) -> tuple[str, dict[str, Any]]:
    """Return the description of a tool, and the JSON schema of its arguments."""
    doc = inspect.getdoc(tool.fn) or ""
    schema = inlined(tool.parameters.schema())
    schema.pop("title", None)
    told, defaults = _arguments_in(doc), tool.parameters.defaults()
    for name, each in schema.get("properties", {}).items():
        if name in told:
            each.setdefault("description", told[name])
        if name in defaults:
            each["default"] = defaults[name]
    own = tool.description != doc.strip().partition("\n")[0]
    return tool.description if own else _before_sections(doc), schema


_SECTION: Final = re.compile(r"^(Args|Arguments|Returns|Raises|Yields):\s*$", re.MULTILINE)
_ARGUMENTS: Final = re.compile(r"^(?:Args|Arguments):\s*$\n((?:[ \t].*\n?|\n)*)", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"^(\w+)(?: \([^)]*\))?:\s*(.*)$")


def _before_sections(doc: str) -> str:
    """Return what a docstring says before its sections."""
    return _SECTION.split(doc, maxsplit=1)[0].strip()


def _arguments_in(doc: str) -> dict[str, str]:
    """Return what the section `Args` of a docstring says, by parameter."""
    found = _ARGUMENTS.search(doc)
    told: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc("\n" + found[1]).splitlines() if found else ():
        entry = _ARGUMENT.match(line)
        if entry is not None:
            name = entry[1]
            told[name] = entry[2]
        elif name and line.strip():
            told[name] = f"{told[name]} {line.strip()}".strip()
    return told


def _openai(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def _openai_responses(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": schema,
        "strict": False,
    }


def _anthropic(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description, "input_schema": schema}


def _mcp(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema}


_SHAPES: Final[dict[str, Callable[[str, str, dict[str, Any]], dict[str, Any]]]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "mcp": _mcp,
}
