"""The pages on durable jobs stay true: what they list is what the code has."""

import contextlib
import dataclasses
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import fields

from perdure import JobQuery, PayloadLimits, QueueLimit, WorkerSettings
from perdure.base.duration import required_seconds
from perdure.base.machine import cores
from perdure.cli.output import Code
from perdure.jobs.definition import JobOptions, StepOptions
from perdure.jobs.state import JOB_TRANSITIONS, STEP_TRANSITIONS
from perdure.store.migrations import migrations
from tests.support.doc_examples import examples

DOCS = Path(__file__).parent.parent.parent / "docs" / "jobs"
SOURCE = Path(__file__).parent.parent.parent / "src" / "perdure"

HEADING = re.compile(r"## (\w+)(?: \((\w+)\))?$", re.MULTILINE)
CREATE = re.compile(r"CREATE TABLE (\w+) \((.*?)^\)", re.MULTILINE | re.DOTALL)
COLUMN = re.compile(r'^  "?([a-z_]+)"? +(?i:text|bigint|float8|bytea)', re.MULTILINE)
ADDED = re.compile(r"ALTER TABLE (\w+)\s+ADD COLUMN (\w+)")
WORD = re.compile(r"`(\w+)`")

Tables = dict[str, list[str]]


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def rows(text: str) -> list[list[str]]:
    """Give the cells of each row of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = {number for number, row in enumerate(cells) if set(row[0]) == {"-"}}
    return [row for number, row in enumerate(cells) if not {number, number + 1} & rules]


def section(text: str, heading: str) -> str:
    return text.split(f"## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


# The schema


def documented_tables(store: str) -> Tables:
    parts = HEADING.split(page("schema.md"))
    found = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {
        name: [row[0].strip("`") for row in rows(text)]
        for name, only, text in found
        if only in (None, store) and rows(text)
    }


def sqlite_tables() -> Tables:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        for migration in migrations("sqlite"):
            database.executescript(migration.sql)
        names = [
            row[0]
            for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        found = {
            name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
            for name in names
        }
    database.close()
    return found


def postgres_tables() -> Tables:
    found: Tables = {}
    for migration in migrations("postgres"):
        for name, body in CREATE.findall(migration.sql):
            found[name] = COLUMN.findall(body)
        for name, column in ADDED.findall(migration.sql):
            found[name].append(column)
    return found


def spelled(tables: Tables) -> list[str]:
    """One line for each column, so that a difference can be read."""
    return [f"{name}.{column}" for name in sorted(tables) for column in tables[name]]


@pytest.mark.parametrize(
    ("store", "real"), [("SQLite", sqlite_tables), ("PostgreSQL", postgres_tables)]
)
def test_the_page_of_the_schema_names_every_column_in_order(
    store: str, real: Callable[[], Tables]
) -> None:
    documented = documented_tables(store)
    assert documented.pop("perdure_migration") == ["number", "name", "checksum"]
    assert spelled(documented) == spelled(real())


# States


@pytest.mark.parametrize(
    ("heading", "table"), [("Jobs", JOB_TRANSITIONS), ("Journal entries", STEP_TRANSITIONS)]
)
def test_the_page_of_states_names_every_transition(
    heading: str, table: Mapping[str, Iterable[str]]
) -> None:
    listed = {
        row[0].strip("`"): set(WORD.findall(row[2]))
        for row in rows(section(page("states.md"), heading))
    }
    assert listed == {str(old): {str(new) for new in after} for old, after in table.items()}


# Settings, options, limits


def test_the_page_of_operations_tells_every_setting_of_a_worker_with_its_default() -> None:
    listed = {
        row[0].strip("`"): row[1] for row in rows(section(page("operations.md"), "Worker settings"))
    }
    standard = dataclasses.asdict(WorkerSettings())
    assert set(listed) == set(standard)
    for name, default in standard.items():
        assert _told(listed[name]) == default, name


def _told(text: str) -> float | None:
    words = {"for ever": None, "no": False, "one a core": cores()}
    return words[text] if text in words else required_seconds(_number(text))


def _number(text: str) -> str | int:
    return int(text) if text.isdigit() else text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("steps.md", sorted(StepOptions.__annotations__)),
        ("submission.md", sorted(JobOptions.__annotations__)),
        ("submission.md", [field.name for field in fields(QueueLimit)]),
        ("payloads.md", [field.name for field in fields(PayloadLimits)]),
    ],
)
def test_the_page_names_everything_that_can_be_said(name: str, words: list[str]) -> None:
    listed = {word for row in rows(page(name)) for word in re.findall(r"\w+", row[0])}
    assert [word for word in words if word not in listed] == []


def test_what_is_listed_by_a_query_can_be_asked() -> None:
    asked = re.findall(
        r"JobQuery\((.*?)\)", "".join(p.read_text("utf-8") for p in DOCS.glob("*.md"))
    )
    known = {field.name for field in fields(JobQuery)}
    assert {word for text in asked for word in re.findall(r"(\w+)=", text)} <= known


def test_the_page_of_the_command_line_tells_every_exit_code() -> None:
    listed = {row[0] for row in rows(section(page("cli.md"), "For programs"))}
    assert listed == {str(code.value) for code in Code}


# Events

KINDS = re.compile(r'(?:Event\(type=|_event\(|kind = )f?"([\w.{}]+)"(?: if .*? else "([\w.]+)")?')


def test_the_page_of_commands_tells_every_event() -> None:
    text = section(page("commands.md"), "The log of a job")
    source = "".join(
        path.read_text("utf-8")
        for layer in ("engine", "store")
        for path in (SOURCE / layer).rglob("*.py")
    )
    written = {kind for pair in KINDS.findall(source) for kind in pair if kind and "{" not in kind}
    assert {"submitted", "claimed", "step.retried", "item.skipped"} <= written
    assert [kind for kind in sorted(written) if f"`{kind}`" not in text] == []


# The tutorial


def test_the_first_job_of_the_tutorial_goes_on_after_a_kill(tmp_path: Path) -> None:
    first = next(examples(page("index.md")))
    program = tmp_path / "hello.py"
    program.write_text(first.code, "utf-8")
    command = [sys.executable, "-W", "error", str(program)]

    killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    seen = [killed.stdout.readline().strip() for _ in range(3)]
    killed.kill()
    seen += killed.stdout.read().splitlines()
    killed.wait()
    killed.stdout.close()

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=40, check=True
    )
    printed = done.stdout.splitlines()
    assert first.output is not None
    # The page that was in hand at the kill may be loaded again, and no other.
    assert len(seen) + len(printed) - len(first.output.splitlines()) in (0, 1)
    assert [*seen, *printed[-(9 - len(seen)) :]] == first.output.splitlines()
    assert set(printed) & set(seen[:-1]) == set()
