"""Settings of the command line, and `perdure config`: where each value comes from.

A flag counts before the environment (`PERDURE_URL`), that before the nearest `perdure.toml`, and
that before `[tool.perdure]` of `pyproject.toml`. What the files say is put into the environment of
this program where the environment says nothing, so every command, and every program that it starts,
finds it there. A secret belongs in the environment, or in a file that `PERDURE_URL_FILE` names.
"""

import os
import tomllib
from collections.abc import Mapping, MutableMapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import typer
from rich.table import Table

from perdure.base.secret import without_secrets
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    cell,
    console,
    give_list,
    refuse,
)

PREFIX: Final = "PERDURE_"
FILE: Final = "_FILE"
TOML: Final = "perdure.toml"
PYPROJECT: Final = "pyproject.toml"

# Each setting is a key of the files, and with PERDURE_ a variable; what it is, and its default.
SETTINGS: Final[dict[str, tuple[str, str]]] = {
    "url": ("The store of the jobs.", ""),
    "app": ("The app, as module:app.", ""),
    "concurrency": ("How many jobs a worker runs at once; by default as the app says.", ""),
    "log_format": ("Of a worker: console or json.", "console"),
    "log_level": ("Of a worker: debug, info, warning or error.", "info"),
    "metrics_host": ("Where a worker serves its metrics.", "127.0.0.1"),
    "metrics_port": ("The port of the metrics of a worker.", ""),
    "host": ("Where `perdure serve` listens.", "127.0.0.1"),
    "port": ("The port of `perdure serve` and `perdure dev`.", "8080"),
    "encryption_keys": ("The keys that encrypt payloads; not in a file of the project.", ""),
    "encryption_keys_file": ("A file with these keys.", ""),
}


class Value(NamedTuple):
    """The value of a setting, and where it comes from."""

    name: str
    value: str
    origin: str


class FileSettings(NamedTuple):
    """What a file says."""

    path: Path
    values: Mapping[str, str]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Show the settings.", no_args_is_help=True)
    group.callback()(lambda: None)  # so that its only command needs its name
    group.command("show")(show_settings)
    app.add_typer(group, name="config")


def show_settings(*, output: FormatOption = Format.TABLE) -> None:
    """Show every setting, its value and where the value comes from."""
    found = [
        {"name": each.name, "value": without_secrets(each.value), "origin": each.origin}
        for each in resolved(os.environ, read_files(Path.cwd()))
    ]
    if give_list(found, output, "name"):
        return
    table = Table("setting", "value", "from", "", box=None)
    for row in found:
        about = SETTINGS[row["name"]][0]
        table.add_row(*map(cell, (row["name"], row["value"] or "-", row["origin"], about)))
    console().print(table)


# The order in which values count.


def resolved(environ: Mapping[str, str], file: FileSettings | None) -> list[Value]:
    """Return every setting: from the environment, the file or by default."""
    return [_resolved(name, environ, file) for name in SETTINGS]


def _resolved(name: str, environ: Mapping[str, str], file: FileSettings | None) -> Value:
    variable = PREFIX + name.upper()
    from_file = None if file is None else file.values.get(name)
    if value := environ.get(variable):
        origin, _, put = environ.get(_marker(name), "").partition("\n")
        ours = bool(origin) and put == value  # `apply` has put it there
        return Value(name, value, origin if ours else f"environment: {variable}")
    if path := environ.get(variable + FILE):
        return Value(name, _read_secret(variable, path), f"environment: {variable}{FILE}")
    if from_file is not None and file is not None:
        return Value(name, from_file, str(file.path))
    return Value(name, SETTINGS[name][1], "default")


def _marker(name: str) -> str:
    return f"_{PREFIX}{name.upper()}_ORIGIN"


def _read_secret(variable: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{variable}{FILE}: {path} cannot be read: {error}", Code.USAGE)


def apply(environ: MutableMapping[str, str]) -> None:
    """Put what the files say into the environment, where it says nothing itself."""
    for each in resolved(environ, read_files(Path.cwd())):
        if each.origin != "default" and not environ.get(PREFIX + each.name.upper()):
            environ[PREFIX + each.name.upper()] = each.value
            environ[_marker(each.name)] = f"{each.origin}\n{each.value}"


# Files


def read_files(folder: Path) -> FileSettings | None:
    """Return the settings of the nearest file of a project; None if there is none.

    The project ends where a `pyproject.toml` or a `.git` is.
    """
    for place in (folder, *folder.parents):
        if (own := place / TOML).is_file():
            return _checked(own, _read(own))
        if (shared := place / PYPROJECT).is_file():
            table = _read(shared).get("tool", {}).get("perdure")
            return None if table is None else _checked(shared, table)
        if (place / ".git").exists():
            return None
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        refuse(f"{path} cannot be read: {error}", Code.USAGE)


def _checked(path: Path, table: object) -> FileSettings:
    if not isinstance(table, dict):
        refuse(f"{path}: [tool.perdure] must be a table", Code.USAGE)
    values: dict[str, str] = {}
    for name, value in cast("dict[str, object]", table).items():
        if name not in SETTINGS:
            near = get_close_matches(name, SETTINGS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SETTINGS)}"
            refuse(f"{path}: there is no setting {name!r}; {hint}", Code.USAGE)
        if isinstance(value, bool) or not isinstance(value, str | int):
            refuse(f"{path}: {name} must be a text or a number, not {value!r}", Code.USAGE)
        values[name] = str(value)
    if "encryption_keys" in values:
        where = "write encryption_keys_file, or set PERDURE_ENCRYPTION_KEYS"
        refuse(f"{path}: a key does not belong in this file: {where}", Code.USAGE)
    if "encryption_keys_file" in values:
        values["encryption_keys_file"] = str(path.parent / values["encryption_keys_file"])
    if "url" in values:
        values["url"] = _safe_url(path, values["url"])
    return FileSettings(path, values)


def _safe_url(path: Path, url: str) -> str:
    """Return a URL of a file: without a password, and relative to the file."""
    if urlsplit(url).password:
        where = f"set PERDURE_URL, or PERDURE_URL{FILE} to the path of a file with the URL"
        refuse(f"{path}: a password does not belong in this file: {where}", Code.USAGE)
    name = url.removeprefix("sqlite:///")
    if name == url or name.startswith("/") or path.parent == Path.cwd():
        return url
    return f"sqlite:///{path.parent / name}"
