"""`perdure jobs`: list, show and watch jobs, and control them.

Each command that changes a job is written to the log of the job, with who gave it and why.
"""

import getpass
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeAlias

import typer

from perdure.app import App
from perdure.base.codec import parse
from perdure.base.errors import UnknownName
from perdure.cli.jobs.show import list_jobs, show
from perdure.cli.jobs.watch import watch
from perdure.cli.output import Format, FormatOption, give, perform, say
from perdure.cli.target import (
    AppOption,
    JobArgument,
    UrlOption,
    find_app,
    find_job,
    read_argument,
)
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


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="List, show, watch and control jobs.", no_args_is_help=True)
    group.command("list")(list_jobs)
    for command in (show, watch):
        group.command()(command)
    for name, (text, action) in _SIMPLE.items():
        group.command(name, help=text)(_simple(action))
    for command in (retry, skip, abandon_undo, fork, send):
        group.command()(command)
    app.add_typer(group, name="jobs")


# The commands that only take a reason.

SimpleAction: TypeAlias = Callable[[Handle[Any], str, str], Awaitable[None]]

_SIMPLE: Final[dict[str, tuple[str, SimpleAction]]] = {
    "cancel": (
        "Cancel a job; its running steps are stopped.",
        lambda handle, reason, by: handle.cancel(reason, by=by),
    ),
    "pause": (
        "Pause a job: its running steps finish, and nothing more runs until `resume`.",
        lambda handle, reason, by: handle.pause(reason, by=by),
    ),
    "resume": (
        "Resume a job that is paused or needs attention.",
        lambda handle, reason, by: handle.resume(reason, by=by),
    ),
    "compensate": (
        "Undo a job that failed, was cancelled or needs attention.",
        lambda handle, reason, by: handle.compensate(reason, by=by),
    ),
}


def _simple(action: SimpleAction) -> Callable[..., None]:
    def command(
        job: JobArgument,
        *,
        by: ByOption,
        reason: ReasonOption = "",
        url: UrlOption = None,
        app: AppOption = None,
        output: FormatOption = Format.TABLE,
    ) -> None:
        _control(find_app(app, url), job, output, lambda handle: action(handle, reason, by))

    return command


# The commands with options of their own.


def retry(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    *,
    by: ByOption,
    step: Annotated[
        str | None, typer.Option("--from", help="Start with this step, such as `load#2`.")
    ] = None,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Retry a failed job from where it failed; finished steps do not run again."""
    _control(find_app(app, url), job, output, lambda handle: handle.retry(step, reason, by=by))


def skip(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    step: Annotated[str, typer.Argument(help="The step, such as `load#2`.")],
    *,
    by: ByOption,
    reason: ReasonOption,
    result: Annotated[str, typer.Option("--result", help="The result of the step, as JSON.")] = (
        "null"
    ),
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Mark a step of a job as done, because somebody did it by hand."""

    async def command(handle: Handle[Any]) -> None:
        await handle.skip(step, reason, output=parse(read_argument(result), "the result"), by=by)

    _control(find_app(app, url), job, output, command)


def abandon_undo(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    undo: Annotated[str, typer.Argument(help="What cannot be undone, such as `undo:load#2`.")],
    *,
    by: ByOption,
    reason: ReasonOption,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Continue an undo without this failed part; the job ends as FAILED."""
    _control(
        find_app(app, url), job, output, lambda handle: handle.abandon_undo(undo, reason, by=by)
    )


def _control(app: App, job: str, output: Format, command: JobCommand) -> None:
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
        handle = await find_job(app, job)
        await command(handle)
        now = await handle.job()
        return {"id": now.id, "state": now.state, "request": now.request}


def fork(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    *,
    by: ByOption,
    before: Annotated[str, typer.Option(help="The first step that the copy runs itself.")],
    json_args: Annotated[
        str | None,
        typer.Option("--json-args", "-a", help="Other arguments for the copy; needs --app."),
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Submit a copy of a job that keeps the results of all steps before a given one."""
    copy = perform(_fork, find_app(app, url), job, (before, json_args), by)
    if output is Format.JSON:
        give({"id": copy})
    else:
        say(f"job {copy} submitted: a copy up to {before}")


async def _fork(app: App, job: str, what: tuple[str, str | None], by: str) -> str:
    before, text = what
    async with app:
        handle = await find_job(app, job)
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        if text is not None:
            args, kwargs = await _arguments(app, handle, text)
        return (await handle.fork(before, *args, by=by, **kwargs)).id


async def _arguments(app: App, handle: Handle[Any], text: str) -> tuple[Any, Any]:
    name = (await handle.job()).name
    if name not in app.jobs:
        raise UnknownName(f"other arguments need the code of job {name!r}: pass --app module:app")
    parameters = app.find_job(name).parameters
    return parameters.unpack(parameters.pack_json(read_argument(text), app.limits))


def send(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    topic: Annotated[str, typer.Argument(help="The topic, as in `ctx.receive`.")],
    message: Annotated[
        str, typer.Argument(help="The message as JSON; @FILE reads a file, - standard input.")
    ] = "null",
    *,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: a second send has no effect.")
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send a message to a job, for its `ctx.receive`."""
    id, is_new = perform(_send, find_app(app, url), job, (topic, message), key)
    if output is Format.JSON:
        give({"id": id, "new": is_new})
    elif is_new:
        say(f"message sent to job {id}")
    else:
        say(f"job {id} already has a message with this key")


async def _send(app: App, job: str, what: tuple[str, str], key: str | None) -> tuple[str, bool]:
    topic, text = what
    payload = parse(read_argument(text), "the message")
    async with app:
        handle = await find_job(app, job)
        return handle.id, await handle.send(topic, payload, key=key)
