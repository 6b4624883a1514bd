"""What `import perdure.app` loads: nothing that is needed only later, or only by some."""

import subprocess
import sys

import pytest

LATER = ["cronsim", "httpx", "psycopg", "redis", "rich", "sqlite3", "typer", "yaml"]


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    code = "import sys, perdure.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", LATER)
def test_an_app_loads_nothing_before_it_is_needed(loaded: set[str], module: str) -> None:
    assert module not in loaded
