"""`perdure submit`: submits a job, which any worker then runs."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perdure.app import App
from perdure.base.codec import read_plain
from perdure.base.duration import required_seconds
from perdure.base.errors import UnknownName
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    code_of_end,
    give,
    give_one,
    perform,
    refuse,
    say,
    say_new,
    warn,
)
from perdure.cli.target import (
    AppOption,
    LabelOption,
    UrlOption,
    load_app,
    read_argument,
    read_file,
    read_labels,
    settled,
    which_app,
)
from perdure.engine.handle import Handle
from perdure.jobs.failure import Failure
from perdure.jobs.model import Job
from perdure.jobs.plan import Plan
from perdure.jobs.state import JobState

_FROM_FILE = "; `@file` reads them from a file, `-` from standard input"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("submit")(submit)


def submit(  # noqa: PLR0913  an option is a parameter
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODULE:APP] [JOB]",
            help="The app, unless --app or a setting names it, and the job; no job with --plan.",
        ),
    ] = None,
    *,
    json_args: Annotated[
        str, typer.Option("--json-args", "-a", help=f"The arguments as a JSON object{_FROM_FILE}.")
    ] = "{}",
    plan: Annotated[
        Path | None, typer.Option(help="A JSON file with a plan, instead of a job.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: submitting twice makes one job.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="The tenant of the job.")] = "default",
    user: Annotated[str, typer.Option(help="Who submits it.")] = "",
    queue: Annotated[str | None, typer.Option(help="Overrides the queue of the job.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher runs earlier.")] = None,
    label: LabelOption = None,
    delay: Annotated[
        float | None,
        typer.Option(
            parser=required_seconds,
            metavar="DURATION",
            help="Start after this time, such as `10m`.",
        ),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            parser=required_seconds, metavar="DURATION", help="The job fails if it takes longer."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the result.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=required_seconds,
            metavar="DURATION",
            help="Stop waiting after this; the job continues.",
        ),
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Submit a job. It is stored durably when this returns, and a worker runs it."""
    name, job = _app_and_job(words or [], app, has_plan=plan is not None)
    loaded = load_app(name, url)
    given = {"queue": queue, "priority": priority, "delay": delay, "deadline": deadline}
    options = {name: value for name, value in given.items() if value is not None}
    options |= {"tenant": tenant, "user": user, "key": key, "labels": read_labels(label)}
    text = read_argument(json_args) if plan is None else read_file(plan)
    raise typer.Exit(perform(_submit, loaded, (job, text, options), (wait, timeout), output))


def _app_and_job(words: list[str], app: str | None, *, has_plan: bool) -> tuple[str, str | None]:
    """Return the app and the job; one word is the job if there is an app without it."""
    job = None
    if not has_plan and words and (len(words) > 1 or app is not None):
        *words, job = words
    if len(words) > 1 or (job is None) != has_plan:
        refuse(
            "name an app and a job, as in `perdure submit shop.jobs:app order`, or pass a plan "
            "with --plan file.json; the app may also be that of PERDURE_APP or perdure.toml",
            Code.USAGE,
        )
    return which_app(words[0] if words else app), job


async def _submit(
    app: App,
    what: tuple[str | None, str, dict[str, Any]],
    patience: tuple[bool, float | None],
    output: Format,
) -> Code:
    try:
        with _said_once():
            handle = await _submitted(app, *what)
        _warn_if_unserved(handle)
        wait, timeout = patience
        if not wait:
            _print_submitted(handle, output)
            return Code.OK
        if output is Format.TABLE:
            say(_sentence(handle), err=True)
        job = await settled(await app.store(), handle, timeout)
        _print_result(job, output)
        return code_of_end(job.state)
    finally:
        await app.close()


@contextmanager
def _said_once() -> Generator[None]:
    """Keep the engine from logging that nobody serves a job: this command says it itself."""
    logger = logging.getLogger("perdure.jobs")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


async def _submitted(app: App, name: str | None, text: str, options: dict[str, Any]) -> Handle[Any]:
    if name is None:
        return await app.submit(Plan.from_json(text), **options)
    try:
        definition = app.find_job(name)
    except UnknownName as error:
        known = ", ".join(sorted(app.jobs)) or "none"
        raise UnknownName(f"{error}; the app has: {known}") from None
    parameters = definition.parameters
    args, kwargs = parameters.unpack(parameters.pack_json(text, app.limits))
    return await app.submit(definition(*args, **kwargs), **options)


def _warn_if_unserved(handle: Handle[Any]) -> None:
    if handle.unserved is not None:
        warn(f"{handle.unserved}: the job waits until one is started with `perdure worker`")


def _sentence(handle: Handle[Any]) -> str:
    return f"job {handle.id} submitted" if handle.new else f"job {handle.id} was already submitted"


def _print_submitted(handle: Handle[Any], output: Format) -> None:
    if not give_one({"id": handle.id, "new": handle.new}, output):
        say_new(handle.id, _sentence(handle))


def _print_result(job: Job, output: Format) -> None:
    result = None if job.result is None else read_plain(job.result)
    error = None if job.error is None else Failure.unpack(job.error)
    facts = {"id": job.id, "state": job.state, "result": result}
    if give_one(facts | {"error": error and msgspec.to_builtins(error)}, output):
        return
    if job.state is JobState.COMPLETED:
        give(result, indent=2)
    else:
        why = f": {error.summary()}" if error else ""
        warn(f"job {job.id} is {job.state}{why}")
        if job.state is JobState.NEEDS_ATTENTION:
            text = f"run `perdure jobs show {job.id[-8:]}`, then resume, retry or cancel it"
            warn(text)
