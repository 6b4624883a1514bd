"""The example of the documentation runs as a program, and may be run again."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def lines_of_a_run(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.onboarding"],
        cwd=ROOT,
        env={**os.environ, "PERDURE_URL": f"sqlite:///{folder / 'onboarding.db'}"},
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_customer_gets_one_mail_when_the_contract_is_signed(tmp_path: Path) -> None:
    assert lines_of_a_run(tmp_path) == [
        "mail 1 to kim@example.com",
        "Kim signed; 2 checks, 250 pages",
        "3 rows loaded",
    ]
    # The second run finds the job ended, and sends nothing.
    assert lines_of_a_run(tmp_path) == ["mail 1 to kim@example.com", "3 rows loaded"]
