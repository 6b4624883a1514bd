"""What a command works on: an app named as `module:app`, the URL of a store, a job, an input."""

import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from perdure.base.duration import spell
from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.base.secret import without_secrets
from perdure.cli.output import Code, refuse
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.jobs.model import Job
from perdure.jobs.state import ENDED, JobState
from perdure.store.open import check_url, open_store
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.app import App


def import_from_here() -> str:
    """Make modules of the current folder importable, as `python -m` does; return the folder."""
    here = os.getcwd()  # noqa: PTH109  in the form that sys.path has
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


ConfiguredApp: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODULE:APP]",
        envvar="PERDURE_APP",
        help="The app, such as `billing.jobs:app`, unless a setting names it.",
    ),
]
UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="PERDURE_URL",
        help="The store of the jobs, such as `sqlite:///jobs.db` or `postgresql://…`.",
    ),
]
AppOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--app",
        envvar="PERDURE_APP",
        metavar="MODULE:APP",
        help="The app of the jobs, instead of a URL.",
    ),
]

LabelOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="NAME=VALUE", help="A label of the job; repeatable."),
]


def which_app(name: str | None) -> str:
    """Return the name of the app that is needed; exit if there is none."""
    if name is None:
        refuse(
            "which app? Pass module:app, set PERDURE_APP, or write `app` into perdure.toml; "
            "`perdure init` writes a project to start from",
            Code.USAGE,
        )
    return name


def load_app(name: str, url: str | None = None) -> "App":
    """Return an app, importing its module; a URL overrides the app's own."""
    # Loaded on first use: a command that only asks a store needs neither engine nor worker.
    return importlib.import_module("perdure.cli.loading").load_app(name, url)


def find_caller(
    app: str | None, url: str | None, *, needs_code: bool = False, shows_locked: bool = True
) -> Caller:
    """Return what asks and commands the jobs.

    The URL of a store is enough. An app of the settings is then loaded only if its code is needed:
    a file names both, and to import an app takes longer than to ask a store. With `shows_locked`
    it says so where it has no key for a payload, and does not fail.
    """
    is_flag = app != os.environ.get("PERDURE_APP")
    if app is not None and (needs_code or is_flag or url is None):
        found = load_app(app, url)
    elif url is not None:
        found = _caller_at(url)
    else:
        refuse(
            "where are the jobs? Pass --url sqlite:///jobs.db (or set PERDURE_URL), "
            "or --app module:app (or set PERDURE_APP), or write one of them into perdure.toml",
            Code.USAGE,
        )
    found.shows_locked = shows_locked
    _check_exists(found.url)
    return found


def _caller_at(url: str) -> Caller:
    try:
        check_url(url)
    except StoreError as error:
        refuse(str(error), Code.USAGE)
    return Caller(url)


def spelled(url: str) -> str:
    """Return a URL without its password."""
    return without_secrets(url)


def _check_exists(url: str) -> None:
    """Refuse a store that does not exist: looking at it would create an empty one."""
    try:
        store = open_store(url)
    except StoreError as error:
        refuse(str(error), Code.USAGE)
    if store.path is not None and not store.path.exists():
        refuse(
            f"there is no file {store.path} yet; `perdure dev`, `worker` and `submit` create it",
            Code.NOT_FOUND,
        )


# Which job: an id may be shortened (see `Caller.handle`), and tables show its last characters.

SHORT: Final = 8  # an id begins with its time, so its end tells jobs apart

JobArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", help="The id of the job, or its first or last characters.")
]
JobOrStdin: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The id of the job, or a part of it; `-` reads ids from standard input."
    ),
]


def short(job_id: str) -> str:
    """Return the part of an id that people see."""
    return job_id[-SHORT:]


# The text of an option.


def read_labels(given: list[str] | None) -> dict[str, str]:
    """Return labels that are given as `name=value`."""
    labels: dict[str, str] = {}
    for text in given or ():
        name, is_pair, value = text.partition("=")
        if not name or not is_pair or labels.get(name, value) != value:
            refuse(f"--label {text!r}: give each label once, as NAME=VALUE", Code.USAGE)
        labels[name] = value
    return labels


def read_ids() -> list[str]:
    """Return the ids that standard input has, one in each line."""
    found = [line.split()[0] for line in sys.stdin if line.strip()]
    if not found:
        refuse("standard input has no ids", Code.USAGE)
    return found


def read_argument(text: str) -> str:
    """Return the text of an option, or what it refers to: `@file` or `-` for standard input."""
    if text == "-":
        return sys.stdin.read()
    return read_file(Path(text[1:])) if text.startswith("@") else text


def read_file(path: Path) -> str:
    """Return the text of a file."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{path} cannot be read: {error}", Code.USAGE)


# Waiting for a job without being its worker.

# Seconds between two reads of the store, at least and at most; a hint ends the wait in between.
AT_MOST_EVERY, AT_LEAST_EVERY = 0.05, 0.5

# Nothing more happens until a person acts.
AT_REST = ENDED | {JobState.NEEDS_ATTENTION}


async def changes(store: Store) -> AsyncGenerator[None, None]:
    """Yield at once, and then whenever something may have changed."""
    changed = asyncio.Event()
    unwatch = store.watch(changed.set)
    try:
        while True:
            changed.clear()
            yield
            await pause(AT_MOST_EVERY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AT_LEAST_EVERY):
                    await changed.wait()
    finally:
        unwatch()


async def settled(store: Store, handle: Handle[Any], timeout: float | None) -> Job:
    """Return a job when it has ended or needs a person.

    Raises:
        TimeoutError: It has not ended within this time.
    """
    try:
        async with asyncio.timeout(timeout), contextlib.aclosing(changes(store)) as turns:
            async for _ in turns:
                job = await handle.job()
                if job.state in AT_REST:
                    return job
    except TimeoutError:
        pass
    raise TimeoutError(f"job {handle.id} has not ended within {spell(timeout)}; it continues")
