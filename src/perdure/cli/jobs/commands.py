"""Which job is meant: ids may be shortened to their end, as tables show them."""

import getpass
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeAlias

import typer

from perdure.app import App
from perdure.base.codec import parse
from perdure.base.errors import JobError, JobNotFound, UnknownName
from perdure.cli.output import Format, FormatOption, give, perform, say
from perdure.cli.submit import read_argument
from perdure.cli.target import AppOption, UrlOption, find_app
from perdure.engine.handle import Handle
from perdure.jobs.model import JobQuery

SHORT: Final = 8  # the beginning of an id is its time, so its end tells jobs apart
_LENGTH: Final = 32
_PAGE, _PAGES = 500, 10  # how many of the newest jobs are looked through

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", help="The id of the job, or its last characters.")
]


def short(job_id: str) -> str:
    """Return the part of an id that people see."""
    return job_id[-SHORT:]


async def find_job(app: App, text: str) -> Handle[Any]:
    """Find the job that is meant.

    Raises:
        JobNotFound: There is none.
        JobError: There are several.
    """
    if len(text) >= _LENGTH or not text:
        return await app.handle(text)
    found = await _ending_with(app, text)
    if len(found) > 1:
        raise JobError(f"{text!r} may be any of these, say more of it: {', '.join(found)}")
    if not found:
        raise JobNotFound(text)
    return await app.handle(found[0])


async def _ending_with(app: App, text: str) -> list[str]:
    found: list[str] = []
    query = JobQuery(limit=_PAGE)
    for _ in range(_PAGES):
        page = await app.find_jobs(query)
        found += [job.id for job in page if job.id.endswith(text) or job.id == text]
        if len(page) < _PAGE:
            break
        query = JobQuery(limit=_PAGE, before=(page[-1].created_at, page[-1].id))
    return found


# `perdure jobs send`: a message for a job that waits for one.


def send(  # noqa: PLR0913  an option is a parameter
    job: IdArgument,
    topic: Annotated[str, typer.Argument(help="What it is about, as in `ctx.receive`.")],
    message: Annotated[
        str, typer.Argument(help="The message as JSON; @FILE: from a file; -: from standard input.")
    ] = "null",
    *,
    key: Annotated[
        str | None, typer.Option("--key", help="Twice the same key is one message.")
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send a job a message, for its `ctx.receive`."""
    id, is_new = perform(_send, find_app(app, url), job, (topic, message), key)
    if output is Format.JSON:
        give({"id": id, "new": is_new})
    else:
        say(f"job {id} has " + ("the message" if is_new else "a message of this key already"))


async def _send(app: App, job: str, what: tuple[str, str], key: str | None) -> tuple[str, bool]:
    topic, text = what
    payload = parse(read_argument(text), "the message")
    async with app:
        handle = await find_job(app, job)
        return handle.id, await handle.send(topic, payload, key=key)


# `perdure jobs cancel`, `pause`, `resume`, `retry`, `skip`, `compensate` …: each is audited.

Order: TypeAlias = Callable[[Handle[Any]], Awaitable[None]]

ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", "-r", help="Why; it is kept in the job's log.")
]
ByOption: TypeAlias = Annotated[
    str, typer.Option("--by", default_factory=getpass.getuser, help="Who asks.", show_default="you")
]


def cancel(
    job: IdArgument,
    *,
    by: ByOption,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """End a job: its running steps are stopped."""
    _order(find_app(app, url), job, output, lambda it: it.cancel(reason, by=by))


def pause(
    job: IdArgument,
    *,
    by: ByOption,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Let the running steps of a job end, and then nothing more until `resume`."""
    _order(find_app(app, url), job, output, lambda it: it.pause(reason, by=by))


def resume(
    job: IdArgument,
    *,
    by: ByOption,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Let a job go on that is paused, or parked because it needed attention."""
    _order(find_app(app, url), job, output, lambda it: it.resume(reason, by=by))


def retry(  # noqa: PLR0913  an option is a parameter
    job: IdArgument,
    *,
    by: ByOption,
    step: Annotated[
        str | None, typer.Option("--from", help="From this step on, such as `load#2`.")
    ] = None,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Run a failed job again from where it failed; finished steps are not run again."""
    _order(find_app(app, url), job, output, lambda it: it.retry(step, reason, by=by))


def skip(  # noqa: PLR0913  an option is a parameter
    job: IdArgument,
    step: Annotated[str, typer.Argument(help="The step, such as `load#2`.")],
    *,
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept in the log.")],
    result: Annotated[
        str, typer.Option("--result", help="What the step is said to have given, as JSON.")
    ] = "null",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Take a step of a job as done: somebody did it by hand."""

    async def order(it: Handle[Any]) -> None:
        await it.skip(step, reason, output=parse(read_argument(result), "the result"), by=by)

    _order(find_app(app, url), job, output, order)


def compensate(
    job: IdArgument,
    *,
    by: ByOption,
    reason: ReasonOption = "",
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Undo what a job has done that has failed, was cancelled, or needs attention."""
    _order(find_app(app, url), job, output, lambda it: it.compensate(reason, by=by))


def abandon_undo(  # noqa: PLR0913  an option is a parameter
    job: IdArgument,
    undo: Annotated[str, typer.Argument(help="What cannot be undone, such as `undo:load#2`.")],
    *,
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept in the log.")],
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Go on with the rest of an undo without this part; the job ends as FAILED."""
    _order(find_app(app, url), job, output, lambda it: it.abandon_undo(undo, reason, by=by))


def fork(  # noqa: PLR0913  an option is a parameter
    job: IdArgument,
    *,
    by: ByOption,
    before: Annotated[str, typer.Option(help="The first step that the copy does itself.")],
    json_args: Annotated[
        str | None,
        typer.Option("--json-args", "-a", help="Other arguments for the copy; needs --app."),
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Submit a copy of a job that has done everything before a step."""
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
        raise UnknownName(f"other arguments need the code of {name!r}: say --app module:app")
    parameters = app.find_job(name).parameters
    return parameters.unpack(parameters.pack_json(read_argument(text), app.limits))


def _order(app: App, job: str, output: Format, order: Order) -> None:
    """Return an order, and tell what became of the job."""
    facts = perform(_ordered, app, job, order)
    if output is Format.JSON:
        give(facts)
        return
    asked = f", {facts['request']} asked for: its worker does it soon" if facts["request"] else ""
    say(f"job {facts['id']} is {facts['state']}{asked}")


async def _ordered(app: App, job: str, order: Order) -> dict[str, Any]:
    async with app:
        handle = await find_job(app, job)
        await order(handle)
        now = await handle.job()
        return {"id": now.id, "state": now.state, "request": now.request}
