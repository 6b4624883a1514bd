"""`perdure jobs bundle` and `import`: a job as a file, to be looked at in another store."""

import getpass
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.output import perform, pour_json, progress, say
from perdure.cli.target import AppOption, JobArgument, UrlOption, find_caller, read_file
from perdure.engine.caller import Caller


def bundle(job: JobArgument, *, url: UrlOption = None, app: AppOption = None) -> None:
    """Print all that people may see of a job as JSON, without secrets, for `jobs import`."""
    with progress("reading the job"):
        text = perform(_bundle, find_caller(app, url, shows_locked=False), job)
    pour_json(text)


async def _bundle(app: Caller, job: str) -> str:
    async with app:
        return (await app.export_job(job)).decode()


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `jobs bundle` printed.")],
    *,
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Store a job of another store as a copy that has ended, to look at it; nothing runs it."""
    with progress("storing the job"):
        copy = perform(_import, find_caller(app, url), read_file(file).encode())
    say(f"It is job {copy} of tenant imported; look at it with `perdure jobs show {copy}`.")


async def _import(app: Caller, data: bytes) -> str:
    async with app:
        return (await app.import_job(data, by=getpass.getuser())).id
