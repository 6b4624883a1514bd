"""Apps by their names, as `module:app`; a module of its own, since it loads the whole engine."""

import importlib
import traceback
from types import ModuleType
from typing import NoReturn

from perdure.app import App
from perdure.cli.output import Code, refuse
from perdure.cli.target import find_caller, import_from_here


def load_app(name: str, url: str | None = None) -> App:
    """Return an app, importing its module; a URL overrides the app's own."""
    module_name, _, attribute = name.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        refuse(f"{name!r} is a file: pass its module, {dotted}:app", Code.USAGE)
    module = _imported(module_name)
    app = _app_of(module, attribute)
    if url is not None:
        app.url = url
    return app


def find_app(app: str | None, url: str | None) -> App:
    """Return the app of a command that needs more than a caller; the URL of a store is enough."""
    found = find_caller(app, url, needs_code=True)
    return found if isinstance(found, App) else App(found.url)


def _imported(name: str) -> ModuleType:
    here = import_from_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            refuse(f"there is no module {error.name!r} in {here} or on sys.path", Code.USAGE)
        _refuse_import(name, error)
    except Exception as error:  # noqa: BLE001  whatever the user's module raises
        _refuse_import(name, error)


def _refuse_import(name: str, error: Exception) -> NoReturn:
    traceback.print_exception(error)
    refuse(f"module {name!r} cannot be imported, see above", Code.USAGE)


def _app_of(module: ModuleType, attribute: str) -> App:
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if not attribute and len(apps) == 1:
        (attribute,) = apps
    if attribute not in apps:
        known = ", ".join(f"{module.__name__}:{name}" for name in apps) or "none"
        what = f"{module.__name__}:{attribute}" if attribute else module.__name__
        refuse(f"{what!r} is not an App; the module has: {known}", Code.USAGE)
    return apps[attribute]
