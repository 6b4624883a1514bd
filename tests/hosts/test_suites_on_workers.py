"""The behaviour suites of the kernel and of the OTP layer, run on workers of hosts.

Everyday runs take some of their files; `-m long` takes all.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOME = (
    "tests/process/test_link.py",
    "tests/process/test_monitor.py",
    "tests/process/test_names.py",
    "tests/process/test_cancel.py",
    "tests/otp/test_server.py",
    "tests/otp/test_supervisor.py",
    "tests/otp/test_task_links.py",
)
ALL = ("tests/process", "tests/otp", "tests/interop")


def run_on(kind: str, *paths: str) -> None:
    """Run tests on a worker of a kind, in a pytest of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", *paths],
        cwd=ROOT,
        env={**os.environ, "PERDURE_TEST_HOST": kind},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["threads", "os"])
def test_some_behaviour_suites_pass_on_a_worker(kind: str) -> None:
    run_on(kind, *SOME)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["threads", "os"])
def test_all_behaviour_suites_pass_on_a_worker(kind: str) -> None:
    run_on(kind, *ALL)
