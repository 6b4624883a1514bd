"""What a command works on: an app that is named as `module:app`, or the URL of a store."""

import importlib
import traceback
from types import ModuleType
from typing import Annotated, NoReturn, TypeAlias

import typer

from perdure.app import App
from perdure.base.errors import StoreError
from perdure.base.scrub import without_secrets
from perdure.cli.current_folder import import_from_here
from perdure.cli.output import Code, refuse
from perdure.store.open import open_store
from perdure.store.sqlite.store import SqliteStore

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
    """Give the app of a command that only looks at jobs; a URL alone will do."""
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
    """Give a URL without its password."""
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
    if isinstance(store, SqliteStore) and not store.path.exists():
        refuse(
            f"there is no file {store.path}; it is made when the first job is submitted",
            Code.NOT_FOUND,
        )
