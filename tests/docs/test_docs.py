import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.examples import examples, failures

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_EXAMPLES = [page for page in PAGES if any(examples(page.read_text("utf-8")))]
LONGEST_RUN = 30  # seconds: a page that hangs is ended by force


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_the_examples_of_the_page_run_and_print_what_it_says(page: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.docs.examples", name_of(page)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_RUN, check=False
    )
    assert done.returncode == 0, f"\n{done.stdout}\n{done.stderr}"
