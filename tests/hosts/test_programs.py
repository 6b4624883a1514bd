"""Whole programs with OS workers, as somebody writes them who has just read the docs."""

import os
import subprocess
import sys
from pathlib import Path

PATIENCE = 30.0

TASK = """
import sys
import perdure
from perdure.otp import Task
from perdure.process import ProcessHost


async def look() -> bool:
    return sys.stdout.write_through


async def main() -> None:
    async with ProcessHost("cpu", kind="os", workers=1):
        print(await Task.create(look, host="cpu"))


"""


def ran(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """Run the text of a program."""
    path = folder / "program.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, path],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_who_forgot_the_guard_of_the_main_module_is_told_to_write_it(tmp_path: Path) -> None:
    ended = ran(tmp_path, TASK + "perdure.run(main)\n")

    assert ended.returncode == 1
    advice = 'a worker imports this file too: put perdure.run() under `if __name__ == "__main__":`'
    assert advice in ended.stderr.splitlines()[-1]


def test_a_worker_prints_whole_lines_also_where_output_is_unbuffered(tmp_path: Path) -> None:
    ended = ran(tmp_path, TASK + 'if __name__ == "__main__":\n    perdure.run(main)\n')

    assert (ended.stdout, ended.stderr) == ("False\n", "")
