"""Tools of the OpenAI Agents SDK other than functions that this machine runs, as durable steps.

| tool | its step |
|---|---|
| `ShellTool`, `LocalShellTool` | an effect: interrupted commands are left to a person |
| `ApplyPatchTool` | one plain step for each file |
| `CustomTool` | a plain step |
| `ComputerTool` | none: a replay would click everything again, so it is refused |

What the provider runs itself, such as a search or a hosted shell, is part of a model's answer.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from perdure.base.codec import digest
from perdure.base.errors import ApprovalRejected, DefinitionError
from perdure.base.extra import extra
from perdure.integrations.durable_calls import (
    ToolOptions,
    ToolRun,
    ask,
    job,
    key_of,
    tool_call,
)

with extra("openai-agents", "a durable run of the OpenAI Agents SDK"):
    from agents import (
        ApplyPatchTool,
        ComputerTool,
        CustomTool,
        LocalShellTool,
        ShellResult,
        ShellTool,
        Tool,
    )
    from agents.editor import ApplyPatchOperation, ApplyPatchResult
    from agents.tool import LocalShellCommandRequest, ShellCommandRequest
    from agents.tool_context import ToolContext

ADAPTER: Final = "openai-agents"
OPTIONS: Final = "perdure_options"  # in a tool: how it is called
_INNER: Final = "perdure_inner"  # in a durable copy: the tool itself

_SHELL: Final = ToolOptions(effect=True)
_SHELL_RESULT: Final[TypeAdapter[Any]] = TypeAdapter(ShellResult | str)
_PATCH_RESULT: Final[TypeAdapter[Any]] = TypeAdapter(ApplyPatchResult | str | None)


def durable_local_tool(tool: Tool, options: Mapping[str, ToolOptions]) -> Tool:
    """Return a copy of a tool whose calls are steps; a tool of the provider as it is.

    Args:
        tool: Any tool but a function.
        options: How tools are called, by name.

    Raises:
        DefinitionError: It is a computer, and nobody has said that it may be one in a job.
    """
    if _INNER in vars(tool):
        return tool
    declared = vars(tool).get(OPTIONS) or options.get(tool.name)
    if isinstance(tool, ComputerTool):
        return _accepted(tool, declared)
    made: Any = copy.copy(tool)
    vars(made)[_INNER] = tool
    match tool:
        case LocalShellTool():
            made.executor = partial(_run_local_shell, tool, declared or _SHELL)
        case ShellTool() if tool.executor is not None:
            made.executor = partial(_run_shell, tool, declared or _SHELL)
        case ApplyPatchTool():
            made.editor = _DurableEditor(tool, declared or ToolOptions())
        case CustomTool():
            made.on_invoke_tool = partial(_run_custom, tool, declared or ToolOptions())
        case _:
            return tool
    if getattr(tool, "on_approval", None) is None:
        made.needs_approval = False  # people are asked when it is called
    return made


def _accepted(tool: "ComputerTool[Any]", declared: ToolOptions | None) -> Tool:
    if declared is None or not declared.inline:
        raise DefinitionError(
            f"the tool {tool.name!r} cannot be durable: what happens on a screen is not recorded, "
            "and a replay of the job would do it again. Offer what it does as function tools; or, "
            "if doing it again does no harm, say so with "
            f"install(tools={{{tool.name!r}: False}})"
        )
    return tool


# One call


@dataclass(frozen=True)
class _LocalCall:
    """A tool call: what is asked of it, and how it is done."""

    tool: Any
    options: ToolOptions
    id: str
    arguments: dict[str, Any]
    context: Any
    about: Any  # what the tool's own rule for approvals gets
    run: Callable[[dict[str, Any]], Any]  # returns plain values, or an awaitable of them

    async def made(self, rejected: Callable[[str], Any]) -> Any:
        """Make the call, in a job as a step; return its result as plain values.

        A rejection of a person becomes what `rejected` returns of its reason.
        """
        ctx = job(ADAPTER)
        if ctx is None:
            return await _awaited(self.run(self.arguments))
        name, key, given = self.tool.name, key_of(ctx, self.id), self.arguments
        if await self._needs_approval():
            answer = await ask(ctx, name, given, key=key)
            if not answer.approved:
                return rejected(answer.reason)
            given = answer.arguments

        async def body(run: ToolRun) -> Any:
            return await _awaited(self.run(run.arguments))

        try:
            return await tool_call(ctx, name, body, key=key, arguments=given, options=self.options)
        except ApprovalRejected as no:
            return rejected(no.reason)

    async def _needs_approval(self) -> bool:
        if getattr(self.tool, "on_approval", None) is not None:
            return False  # the SDK has called it already
        policy: Any = getattr(self.tool, "needs_approval", False)
        return (
            await _awaited(policy(self.context, self.about, self.id))
            if callable(policy)
            else policy
        )


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _read(kind: TypeAdapter[Any], found: Any) -> Any:
    """Return a recorded result as the SDK's own type; as text, if a person said what it was."""
    try:
        return kind.validate_python(found)
    except ValidationError:
        return "" if found is None else str(found)


def refused(reason: str) -> str:
    """Return a no of a person, for the model."""
    return f"Tool execution was not approved. {reason}".rstrip()


# The kinds of tools


async def _run_shell(tool: ShellTool, options: ToolOptions, request: ShellCommandRequest) -> Any:
    data, action = request.data, request.data.action

    async def run(arguments: dict[str, Any]) -> Any:
        wanted = replace(data, action=replace(action, commands=arguments["commands"]))
        executor: Any = tool.executor
        found = await _awaited(executor(replace(request, data=wanted)))
        return _SHELL_RESULT.dump_python(found, mode="json")

    given = {"commands": list(action.commands)}
    call = _LocalCall(tool, options, data.call_id, given, request.ctx_wrapper, action, run)
    return _read(_SHELL_RESULT, await call.made(refused))


async def _run_local_shell(
    tool: LocalShellTool, options: ToolOptions, request: LocalShellCommandRequest
) -> str:
    data, action = request.data, request.data.action

    def run(arguments: dict[str, Any]) -> Any:
        edited = action.model_copy(update={"command": arguments["command"]})
        return tool.executor(replace(request, data=data.model_copy(update={"action": edited})))

    given = {"command": list(action.command)}
    call = _LocalCall(tool, options, data.call_id, given, request.ctx_wrapper, action, run)
    return str(await call.made(refused))


async def _run_custom(
    tool: CustomTool, options: ToolOptions, context: ToolContext[Any], text: str
) -> str:
    async def run(arguments: dict[str, Any]) -> str:
        return str(await _awaited(tool.on_invoke_tool(context, arguments["input"])))

    given, id = {"input": text}, context.tool_call_id
    return await _LocalCall(tool, options, id, given, context, text, run).made(refused)


class _DurableEditor:
    """Edits each file in a step; see `ApplyPatchEditor` of the SDK."""

    def __init__(self, tool: ApplyPatchTool, options: ToolOptions) -> None:
        self._tool = tool
        self._options = options

    async def create_file(self, operation: ApplyPatchOperation) -> Any:
        return await self._edit(operation)

    async def update_file(self, operation: ApplyPatchOperation) -> Any:
        return await self._edit(operation)

    async def delete_file(self, operation: ApplyPatchOperation) -> Any:
        return await self._edit(operation)

    async def _edit(self, operation: ApplyPatchOperation) -> Any:
        async def run(arguments: dict[str, Any]) -> Any:
            edit: Any = getattr(self._tool.editor, operation.type)
            return _PATCH_RESULT.dump_python(
                await _awaited(edit(replace(operation, **arguments))), mode="json"
            )

        given = {"path": operation.path, "diff": operation.diff, "move_to": operation.move_to}
        # The SDK does not tell an editor the id of the call.
        id = digest(operation.type, *(str(each) for each in given.values()))[:32]
        context = operation.ctx_wrapper
        call = _LocalCall(self._tool, self._options, id, given, context, operation, run)
        return _read(_PATCH_RESULT, await call.made(_failed_patch))


def _failed_patch(reason: str) -> Any:
    return {"status": "failed", "output": refused(reason)}
