"""What an import loads: nothing that the program may never need."""

import subprocess
import sys

import pytest

HEAVY = ("cronsim", "psycopg", "rich", "sqlite3", "typer", "yaml")


def loaded_by(statement: str) -> set[str]:
    """Return the names of all modules that a new interpreter has after a statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_package_alone_loads_neither_commands_nor_databases() -> None:
    found = loaded_by("import perdure")
    assert found.isdisjoint(HEAVY)
    assert found.isdisjoint({"asyncio", "msgspec"})


@pytest.mark.parametrize(
    "statement",
    ["import perdure.otp", "from perdure import process", "import perdure.testing"],
)
def test_processes_load_neither_commands_nor_databases(statement: str) -> None:
    assert loaded_by(statement).isdisjoint(HEAVY)


def test_an_app_loads_no_database_before_its_url_is_used() -> None:
    assert loaded_by("from perdure import App").isdisjoint(HEAVY)
