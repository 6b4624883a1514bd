"""Reads the `.sql` files: named statements, written once for both databases.

A statement begins with `-- name: its_name`.
A line that ends in `-- sqlite` or `-- postgres` is there for that database alone,
one that ends in `-- if word` only where the caller has a value of that name.
"""

import re
from importlib.resources import files
from typing import Literal

Dialect = Literal["sqlite", "postgres"]

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MARK = re.compile(r"\s*-- (sqlite|postgres)?(?: ?if (\w+))?$")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


def load(dialect: Dialect) -> dict[str, str]:
    """Give all statements of one database by name."""
    other = "postgres" if dialect == "sqlite" else "sqlite"
    texts = [
        path.read_text("utf-8")
        for path in sorted(files("perdure.store").joinpath("sql").iterdir(), key=str)
        if path.name.endswith(".sql") and path.name != f"{other}.sql"
    ]
    return {
        name: _spell(text, dialect) for each in texts for name, text in _statements(each).items()
    }


def only(statement: str, present: set[str]) -> str:
    """Leave out the lines whose word is not present."""
    lines = (line.partition("  -- if ") for line in statement.splitlines())
    return "\n".join(text for text, _, word in lines if not word or word in present)


def _statements(text: str) -> dict[str, str]:
    _, *parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _spell(statement: str, dialect: Dialect) -> str:
    lines: list[str] = []
    for line in statement.splitlines():
        mark = _MARK.search(line)
        if mark is None:
            lines.append(line)
        elif mark[1] in (None, dialect):
            condition = f"  -- if {mark[2]}" if mark[2] else ""
            lines.append(line[: mark.start()] + condition)
    text = "\n".join(lines)
    if dialect == "postgres":
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return text
