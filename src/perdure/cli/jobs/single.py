"""`perdure jobs compensate`, `skip`, `skip-item`, `abandon-undo`, `fork`, `send`: of one job."""

from typing import Annotated, Any, cast

import typer

from perdure.base.codec import parse
from perdure.base.errors import UnknownName, Unstorable
from perdure.cli.jobs.control import ByOption, ReasonOption, control
from perdure.cli.output import Format, FormatOption, give_one, perform, say, say_new
from perdure.cli.target import (
    AppOption,
    JobArgument,
    JobOrStdin,
    UrlOption,
    find_caller,
    read_argument,
)
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle


def compensate(
    job: JobOrStdin,
    *,
    by: ByOption,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Undo a job that failed, was cancelled or needs attention."""
    control(find_caller(app, url), job, output, lambda handle: handle.compensate(reason, by=by))


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

    control(find_caller(app, url), job, output, command)


def skip_item(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    step: Annotated[str, typer.Argument(help="The step that failed, such as `migrate#1`.")],
    *,
    by: ByOption,
    reason: ReasonOption,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Leave out the item at which a step of a job has failed, and continue with the next one."""
    caller = find_caller(app, url)
    control(caller, job, output, lambda handle: handle.skip_item(step, reason, by=by))


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
    control(
        find_caller(app, url), job, output, lambda handle: handle.abandon_undo(undo, reason, by=by)
    )


def fork(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    *,
    by: ByOption,
    before: Annotated[str, typer.Option(help="The first step that the copy runs itself.")],
    json_args: Annotated[
        str | None,
        typer.Option(
            "--json-args",
            "-a",
            help="Other arguments for the copy, as a JSON object; the rest stay. Needs --app.",
        ),
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Submit a copy of a job that keeps the results of all steps before a given one."""
    caller = find_caller(app, url, needs_code=json_args is not None)
    copy = perform(_fork, caller, job, (before, json_args), by)
    if not give_one({"id": copy}, output):
        say_new(copy, f"job {copy} submitted: a copy up to {before}")


async def _fork(app: Caller, job: str, what: tuple[str, str | None], by: str) -> str:
    before, text = what
    async with app:
        handle = await app.handle(job)
        given = {} if text is None else await _arguments(app, handle, text)
        return (await handle.fork(before, by=by, arguments=given)).id


async def _arguments(app: Caller, handle: Handle[Any], text: str) -> dict[str, Any]:
    name = (await handle.job()).name
    if name not in app.jobs:
        raise UnknownName(f"other arguments need the code of job {name!r}: pass --app module:app")
    given = parse(read_argument(text), "the arguments")
    if not isinstance(given, dict):
        raise Unstorable("the arguments must be a JSON object with one field per parameter")
    return cast("dict[str, Any]", given)


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
    id, is_new = perform(_send, find_caller(app, url), job, (topic, message), key)
    if give_one({"id": id, "new": is_new}, output):
        return
    if is_new:
        say(f"message sent to job {id}")
    else:
        say(f"job {id} already has a message with this key")


async def _send(app: Caller, job: str, what: tuple[str, str], key: str | None) -> tuple[str, bool]:
    topic, text = what
    payload = parse(read_argument(text), "the message")
    async with app:
        handle = await app.handle(job)
        return handle.id, await handle.send(topic, payload, key=key)
