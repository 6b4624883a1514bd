"""Give a command to one job, and print the state that it is in afterwards."""

import getpass
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeAlias

import typer

from perdure.app import App
from perdure.cli.output import Format, give, perform, say
from perdure.engine.handle import Handle

JobCommand: TypeAlias = Callable[[Handle[Any]], Awaitable[None]]

ByOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--by", default_factory=getpass.getuser, help="Who issues the command.", show_default="you"
    ),
]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", "-r", help="The reason, for the log of the job.")
]


def control(app: App, job: str, output: Format, command: JobCommand) -> None:
    """Give a command to a job, and print its state."""
    state = perform(_controlled, app, job, command)
    if output is Format.JSON:
        give(state)
        return
    request = state["request"]
    later = f"; {request} is requested, and its worker will do it soon" if request else ""
    say(f"job {state['id']} is {state['state']}{later}")


async def _controlled(app: App, job: str, command: JobCommand) -> dict[str, Any]:
    async with app:
        handle = await app.handle(job)
        await command(handle)
        now = await handle.job()
        return {"id": now.id, "state": now.state, "request": now.request}
