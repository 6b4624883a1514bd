"""Tools of the OpenAI Agents SDK that are no functions: shells, patches, computers."""

from collections.abc import Generator
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    LocalShellTool,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellResult,
    ShellTool,
    set_tracing_disabled,
)
from agents.editor import ApplyPatchOperation, ApplyPatchResult
from agents.run import set_default_agent_runner
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseCustomToolCall,
    ResponseFunctionShellToolCall,
)
from openai.types.responses.response_apply_patch_tool_call import OperationUpdateFile
from openai.types.responses.response_function_shell_tool_call import Action
from openai.types.responses.response_output_item import LocalShellCall, LocalShellCallAction

from perdure import JobContext
from perdure.app import App
from perdure.base.codec import decode
from perdure.base.errors import JobFailed
from perdure.integrations.openai_agents import durable, install
from perdure.jobs.state import JobState
from tests.engine.test_approval import ANN, asked
from tests.integrations.openai_agents.fake_models import ScriptedModel, says
from tests.support import engine
from tests.support.engine import until

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def installed() -> Generator[None]:
    """The durable runner, for one test."""
    set_tracing_disabled(True)
    install()
    yield
    set_default_agent_runner(None)


def shell(id: str, *commands: str) -> ResponseFunctionShellToolCall:
    return ResponseFunctionShellToolCall(
        id=id,
        call_id=id,
        action=Action(commands=list(commands)),
        status="completed",
        type="shell_call",
    )


def local_shell(id: str, *command: str) -> LocalShellCall:
    action = LocalShellCallAction(type="exec", command=list(command), env={})
    return LocalShellCall(
        id=id, call_id=id, action=action, status="completed", type="local_shell_call"
    )


def patch(id: str, path: str) -> ResponseApplyPatchToolCall:
    operation = OperationUpdateFile(type="update_file", path=path, diff="+ a line")
    return ResponseApplyPatchToolCall(
        id=id, call_id=id, operation=operation, status="completed", type="apply_patch_call"
    )


def custom(id: str, text: str) -> ResponseCustomToolCall:
    return ResponseCustomToolCall(call_id=id, name="note", input=text, type="custom_tool_call")


class Editor:
    """Writes down what it is asked for."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        if operation.path == "bad.py":
            raise ValueError("the context does not fit")
        self._log.append(f"edit {operation.path}: {operation.diff}")
        return ApplyPatchResult(status="completed", output=f"edited {operation.path}")

    create_file = delete_file = update_file


def outputs(result: Any) -> list[str]:
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


def tools(log: list[str], **options: Any) -> list[Any]:
    async def run_shell(request: Any) -> ShellResult:
        log.extend(request.data.action.commands)
        done = ShellCallOutcome(type="exit", exit_code=0)
        return ShellResult(output=[ShellCommandOutput(stdout="2 files", outcome=done)])

    async def note(context: Any, text: str) -> str:
        log.append(f"note {text}")
        return f"noted {text}"

    return [
        ShellTool(executor=run_shell, **options),
        ApplyPatchTool(editor=Editor(log), **options),
        CustomTool(name="note", description="Take a note.", on_invoke_tool=note, **options),
    ]


@engine.durable
async def test_each_call_is_a_step_and_not_made_again(app: App) -> None:
    log: list[str] = []
    script: Any = {
        0: [shell("s1", "ls"), patch("p1", "a.py"), custom("n1", "x")],
        3: [patch("p2", "bad.py")],
        4: [says("ok")],
    }
    ann = Agent(name="ann", model=ScriptedModel("ann", script), tools=tools(log))

    @app.job
    async def work(ctx: JobContext) -> list[str]:
        result = await Runner.run(ann, "begin")
        await ctx.receive("go")
        return outputs(result)

    async with app.running():
        handle = await app.submit(work())
        await until(app, handle.id, JobState.WAITING)
        await handle.send("go")  # everything before is replayed
        found = await handle.result("10s")
    assert sorted(found[:3]) == ["2 files", "edited a.py", "noted x"]
    assert "the context does not fit" in found[3]
    assert sorted(log) == ["edit a.py: + a line", "ls", "note x"]
    names = {entry.name for entry in await handle.journal()}
    assert {"call:tool:apply_patch", "call:tool:note", "call:tool:shell"} <= names
    assert [effect.target for effect in await handle.effects()] == ["shell"]


@engine.durable
async def test_an_error_of_a_shell_is_left_to_a_person_who_says_what_it_printed(app: App) -> None:
    def run(request: Any) -> str:
        raise OSError("lost the machine")

    script: Any = {
        0: [local_shell("s1", "rm", "-r", "tmp")],
        1: [shell("s2", "make")],
        2: [says("ok")],
    }
    both: list[Any] = [LocalShellTool(executor=run), ShellTool(executor=run)]
    ann = Agent(name="ann", model=ScriptedModel("ann", script), tools=both)

    @app.job
    async def work() -> list[str]:
        return outputs(await Runner.run(ann, "begin"))

    async with app.running():
        handle = await app.submit(work())
        for number, printed in enumerate(("gone", {"files": 2}), 1):
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            await handle.resolve(number, "happened", result=printed, by="ann")
        assert await handle.result("30s") == ["gone", "{'files': 2}"]


@engine.durable
async def test_people_are_asked_about_commands_and_may_edit_them(app: App) -> None:
    log: list[str] = []
    script: Any = {0: [shell("s1", "rm *")], 1: [patch("p1", "a.py")], 2: [says("ok")]}
    made = tools(log, needs_approval=True)
    ann = Agent(name="ann", model=ScriptedModel("ann", script), tools=made)

    @app.job
    async def work() -> list[str]:
        return outputs(await Runner.run(ann, "begin"))

    async with app.running():
        handle = await app.submit(work(), user="kim")
        question = await asked(app)
        assert decode(question.shown) == {"commands": ["rm *"]}
        await app.decide(question, "approve", by=ANN, arguments={"commands": ["ls"]})
        await app.decide(await asked(app), "reject", by=ANN, reason="not this file")
        found = await handle.result("10s")
    assert "not this file" in found[-1]
    assert log == ["ls"]


@engine.durable
async def test_a_computer_is_refused_unless_somebody_says_that_it_may_be_replayed(app: App) -> None:
    model = ScriptedModel("ann", {0: [says("ok")]})

    async def create(**_: Any) -> Any:
        return None  # no computer

    screen: Any = ComputerTool(computer=create)

    @app.job
    async def work() -> str:
        ann = Agent(name="ann", model=model, tools=[screen])
        return (await Runner.run(ann, "begin")).final_output

    with pytest.raises(JobFailed, match="'computer_use_preview' cannot be durable"):
        await app.run(work())
    install(tools={"computer_use_preview": False})
    with pytest.raises(JobFailed, match="did not provide a computer"):  # the SDK has asked for it
        await app.run(work())


@engine.durable
async def test_a_tool_says_itself_how_it_is_called(app: App) -> None:
    log: list[str] = []
    made = tools(log)
    durable(effect=True, in_doubt="replay")(made[2])
    script: Any = {0: [custom("n1", "x")], 1: [says("ok")]}
    ann = Agent(name="ann", model=ScriptedModel("ann", script), tools=made)

    @app.job
    async def work() -> list[str]:
        return outputs(await Runner.run(ann, "begin"))

    async with app.running():
        handle = await app.submit(work())
        assert await handle.result("10s") == ["noted x"]
    (effect,) = await handle.effects()
    assert (effect.target, effect.in_doubt) == ("note", "replay")
