"""`perdure jobs export` and `replay`: a journal as a file, and whether today's code fits it."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins

from perdure.app import App
from perdure.cli.loading import find_app, load_app
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    counted,
    give_one,
    perform,
    pour_json,
    say,
)
from perdure.cli.target import (
    AppOption,
    JobArgument,
    UrlOption,
    find_caller,
    read_file,
)
from perdure.engine.caller import Caller
from perdure.engine.recorded import RecordedJob, recorded_job
from perdure.engine.replay import ReplayReport
from perdure.engine.replay import replay as replay_it


def export(job: JobArgument, *, url: UrlOption = None, app: AppOption = None) -> None:
    """Print a job and its journal as JSON, to be replayed later; it holds the data of the job."""
    pour_json(perform(_exported, find_caller(app, url, shows_locked=False), job))


async def _exported(app: Caller, job: str) -> str:
    async with app:
        handle = await app.handle(job)
        return (await recorded_job(await app.store(), handle.id)).to_json()


def replay(
    job: Annotated[
        str, typer.Argument(metavar="JOB|FILE", help="A job, or a file that `export` wrote.")
    ],
    *,
    app: Annotated[
        str,
        typer.Option(
            "--app", envvar="PERDURE_APP", metavar="MODULE:APP", help="The app with today's code."
        ),
    ],
    url: UrlOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Check that today's code fits the journal of a job; nothing is run, nothing is written."""
    file = Path(job)
    if file.suffix == ".json" or file.is_file():
        report = perform(_replay_text, load_app(app, url), read_file(file))
    else:
        report = perform(_replay_stored, find_app(app, url), job)
    _show(report, output)


async def _replay_text(app: App, text: str) -> ReplayReport:
    return await replay_it(app, RecordedJob.from_json(text))


async def _replay_stored(app: App, job: str) -> ReplayReport:
    async with app:
        return await replay_it(app, (await app.handle(job)).id)


def _show(report: ReplayReport, output: Format) -> None:
    if not give_one(to_builtins(report), output, "job_id"):
        what = f"job {report.job_id} ({report.name}, version {report.version})"
        say(
            f"{what}: the code fits its journal of {counted(report.entries, 'entry')}"
            if report.fits
            else f"{what} has drifted: {report.drift}"
        )
        if report.fits and report.next:
            say(f"next: {', '.join(report.next)}")
    if not report.fits:
        raise typer.Exit(Code.FAILED)
