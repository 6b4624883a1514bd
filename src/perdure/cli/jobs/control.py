"""Give a command to one job or to several, and print the states that they are in afterwards."""

import getpass
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer

from perdure.base.errors import JobError
from perdure.cli.output import (
    Code,
    Format,
    code_of,
    give_list,
    give_one,
    perform,
    progress,
    say,
    warn,
)
from perdure.cli.target import read_ids
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle

JobCommand: TypeAlias = Callable[[Handle[Any]], Awaitable[None]]

STDIN: Final = "-"

ByOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--by", default_factory=getpass.getuser, help="Who issues the command.", show_default="you"
    ),
]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", "-r", help="The reason, for the log of the job.")
]


def control(caller: Caller, job: str, output: Format, command: JobCommand) -> None:
    """Give a command to a job, or to each of standard input (`-`), and print the states."""
    if job == STDIN:
        control_all(caller, read_ids(), output, command)
        return
    state = perform(_controlled, caller, job, command)
    if not give_one(state, output):
        say(_sentence(state))


def control_all(caller: Caller, jobs: Sequence[str], output: Format, command: JobCommand) -> None:
    """Give a command to several jobs; one that refuses does not keep it from the others."""
    states, code = perform(_each_controlled, caller, jobs, command)
    if not give_list(states, output):
        say(*map(_sentence, states))
    if code:
        raise typer.Exit(code)


def _sentence(state: dict[str, Any]) -> str:
    request = state["request"]
    later = f"; {request} is requested, and its worker will do it soon" if request else ""
    return f"job {state['id']} is {state['state']}{later}"


async def _controlled(caller: Caller, job: str, command: JobCommand) -> dict[str, Any]:
    async with caller:
        return await _one(caller, job, command)


async def _each_controlled(
    caller: Caller, jobs: Sequence[str], command: JobCommand
) -> tuple[list[dict[str, Any]], Code]:
    """Return the states, and the exit code of the last refusal."""
    states: list[dict[str, Any]] = []
    code = Code.OK
    async with caller:
        with progress("jobs") as work:
            for done, job in enumerate(jobs):
                work.set(done, len(jobs))
                try:
                    states.append(await _one(caller, job, command))
                except JobError as error:
                    warn(str(error))
                    code = code_of(error)
    return states, code


async def _one(caller: Caller, job: str, command: JobCommand) -> dict[str, Any]:
    handle = await caller.handle(job)
    await command(handle)
    now = await handle.job()
    return {"id": now.id, "state": now.state, "request": now.request}
