"""What a command works on: an app that is named as `module:app`, or the URL of a store."""

import asyncio
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import AsyncGenerator
from types import ModuleType
from typing import Annotated, Any, NoReturn, TypeAlias

import typer

from perdure.app import App
from perdure.base.duration import spell
from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.base.secret import without_secrets
from perdure.cli.output import Code, refuse
from perdure.engine.handle import Handle
from perdure.jobs.model import Job
from perdure.jobs.state import ENDED, JobState
from perdure.store.open import open_store
from perdure.store.store import Store

# The folder in which a command is given: modules in it can be imported, as by `python -m`.


def import_from_here() -> str:
    """Let modules of the current folder be found; give the folder."""
    here = os.getcwd()  # noqa: PTH109  as it stands in sys.path
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


AppArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Where the app is, such as `billing.jobs:app`.")
]
UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="PERDURE_URL",
        help="Where the jobs are kept, such as `sqlite:///jobs.db` or `postgresql://…`.",
    ),
]
AppOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--app",
        envvar="PERDURE_APP",
        metavar="MODULE:APP",
        help="The app whose jobs they are, instead of a URL.",
    ),
]


def load_app(name: str, url: str | None = None) -> App:
    """Import an app; a URL stands over its own."""
    module_name, _, attribute = name.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        refuse(f"{name!r} is a file: write its module, {dotted}:app", Code.USAGE)
    module = _imported(module_name)
    app = _app_of(module, attribute)
    if url is not None:
        app.url = url
    return app


def find_app(app: str | None, url: str | None) -> App:
    """Return the app of a command that only looks at jobs; a URL alone will do."""
    if app is not None:
        found = load_app(app, url)
    elif url is not None:
        found = App(url)
    else:
        refuse(
            "where are the jobs? Say --url sqlite:///jobs.db (or set PERDURE_URL), "
            "or --app module:app (or set PERDURE_APP)",
            Code.USAGE,
        )
    _check_it_is_there(found.url)
    return found


def spelled(url: str) -> str:
    """Return a URL without its password."""
    return without_secrets(url)


def _imported(name: str) -> ModuleType:
    here = import_from_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            refuse(f"there is no module {error.name!r}; looked in {here} and the rest", Code.USAGE)
        _refuse_import(name, error)
    except Exception as error:  # noqa: BLE001  whatever the user's module raises
        _refuse_import(name, error)


def _refuse_import(name: str, error: Exception) -> NoReturn:
    traceback.print_exception(error)
    refuse(f"the module {name!r} cannot be imported, see above", Code.USAGE)


def _app_of(module: ModuleType, attribute: str) -> App:
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if not attribute and len(apps) == 1:
        (attribute,) = apps
    if attribute not in apps:
        known = ", ".join(f"{module.__name__}:{name}" for name in apps) or "none"
        what = f"{module.__name__}:{attribute}" if attribute else module.__name__
        refuse(f"{what!r} names no App; the module has: {known}", Code.USAGE)
    return apps[attribute]


def _check_it_is_there(url: str) -> None:
    """Refuse to make a new empty store for a question about an old one."""
    try:
        store = open_store(url)
    except StoreError as error:
        refuse(str(error), Code.USAGE)
    if store.path is not None and not store.path.exists():
        refuse(
            f"there is no file {store.path}; it is made when the first job is submitted",
            Code.NOT_FOUND,
        )


# Waiting for a job without being its worker.

# A hint tells when to look; so often at most, and so seldom at least.
AT_MOST_EVERY, AT_LEAST_EVERY = 0.05, 0.5

# Nothing happens any more before a person does something.
AT_REST = ENDED | {JobState.NEEDS_ATTENTION}


async def looks(store: Store) -> AsyncGenerator[None, None]:
    """Return a turn at once, and then whenever something may have changed."""
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
    """Wait until a job has ended, or needs a person.

    Raises:
        TimeoutError: It has not, in this time.
    """
    try:
        async with asyncio.timeout(timeout), contextlib.aclosing(looks(store)) as turns:
            async for _ in turns:
                job = await handle.job()
                if job.state in AT_REST:
                    return job
    except TimeoutError:
        pass
    raise TimeoutError(f"job {handle.id} has not ended within {spell(timeout)}; it goes on")
