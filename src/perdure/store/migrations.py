"""Migrations: numbered SQL files in `sql/migrations/` that bring a schema up to date.

Each file is applied once, in one transaction, and its checksum is kept in the database: a file that
was changed later, or a number that this code does not know, is refused. Therefore a migration that
has landed is never edited; a change of the schema is a new file with the next number.

This module decides what to apply; `sqlite/schema.py` and `postgres/schema.py` apply it.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from perdure.base.errors import SchemaError
from perdure.store.statements import Dialect

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """A hash of the file, by which a changed one is recognised."""
        return sha256(self.sql.encode()).hexdigest()


def migrations(dialect: Dialect) -> list[Migration]:
    """Return the migrations of one database, in order."""
    found: list[Migration] = []
    for path in files("perdure.store").joinpath("sql", "migrations", dialect).iterdir():
        match = _FILE.fullmatch(path.name)
        if match:
            found.append(Migration(int(match[1]), match[2], path.read_text("utf-8")))
    return sorted(found)


def missing(known: list[Migration], applied: Mapping[int, str]) -> list[Migration]:
    """Return the migrations that a database with these numbers and checksums still needs.

    Raises:
        SchemaError: The database is newer than the code, or was created by other files.
    """
    newest = known[-1].number
    if applied and max(applied) > newest:
        raise SchemaError(
            f"the database has schema {max(applied)}, this version of perdure knows "
            f"{newest} and older: use a newer perdure"
        )
    for each in known:
        if each.number in applied and applied[each.number] != each.checksum:
            raise SchemaError(
                f"migration {each.number:04}_{each.name} is not the one that made this database: "
                "it was changed after it was applied; use the version of perdure that fits"
            )
    return [each for each in known if each.number not in applied]
