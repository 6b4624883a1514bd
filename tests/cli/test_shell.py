"""`perdure shell`: a prompt inside a process, through a pipe and through a terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WITHIN = 60
COMMAND = (sys.executable, "-m", "perdure", "shell")
APP = """
from perdure import App

app = App("sqlite:///jobs.db")


@app.job
async def double(number: int) -> int:
    return number * 2
"""


def said(text: str, *arguments: str, cwd: Path) -> tuple[str, str]:
    """Return what a shell prints and complains about that is told this text."""
    ended = subprocess.run(
        [*COMMAND, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=True,
        cwd=cwd,
    )
    return ended.stdout.replace(">>> ", "").replace("... ", ""), ended.stderr


def test_await_works_at_the_prompt_which_is_a_process(tmp_path: Path) -> None:
    text = """
import asyncio
await asyncio.sleep(0, 'slept')
me = process.pid()
async def answer():
    process.send(me, 'hello', 7)

pid = process.spawn(answer)
(await process.inbox().receive()).payload
process.pid() == me
"""
    out, errors = said(text, cwd=tmp_path)
    assert out.split("\n")[:3] == ["'slept'", "7", "True"]
    assert "there are `process`, `otp`, `tree`" in errors


def test_an_error_is_shown_from_the_statement_on_and_the_prompt_goes_on(tmp_path: Path) -> None:
    out, errors = said("1 / 0\nawait asyncio.sleep(0, 'on')\n", cwd=tmp_path)
    shown = errors[errors.index("Traceback") :]
    assert shown.rstrip().splitlines() == [
        "Traceback (most recent call last):",
        '  File "<console>", line 1, in <module>',
        "ZeroDivisionError: division by zero",
    ]
    assert out.startswith("'on'")


def test_a_process_lives_from_one_statement_to_the_next_and_ends_with_the_shell(
    tmp_path: Path,
) -> None:
    text = """
async def wait():
    try:
        await asyncio.sleep(600)
    finally:
        print('ended')

pid = process.spawn(wait)
await asyncio.sleep(0)
process.alive(pid)
'__console__.wait' in str(tree())
exit()
"""
    out, _ = said(text, cwd=tmp_path)
    assert out.split() == ["True", "True", "ended"]


def test_an_app_is_there_and_submits(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    text = """
from jobs import double
(await (await app.submit(double(4))).job()).input
len(app.sync.find_jobs())
await app.run(double(21))
"""
    out, _ = said(text, "jobs:app", cwd=tmp_path)
    assert out.split("\n")[:3] == ["b'{\"number\":4}'", "1", "42"]


def test_an_app_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        said("", "nowhere:app", cwd=tmp_path)
    assert "there is no module 'nowhere'" in caught.value.stderr


class Terminal:
    """A shell in a terminal."""

    def __init__(self, cwd: Path) -> None:
        self._unread = ""
        self._child, self._descriptor = pty.fork()
        if self._child == 0:
            os.chdir(cwd)
            os.execv(sys.executable, COMMAND)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def write(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def read_until(self, text: str) -> None:
        while text not in self._unread:
            ready = self._poll.poll(WITHIN * 1000)
            assert ready, self._unread
            self._unread += os.read(self._descriptor, 4096).decode()
        self._unread = self._unread.partition(text)[2]

    def interrupt(self) -> None:
        os.kill(self._child, signal.SIGINT)

    def end(self) -> int:
        # Before the prompt the terminal itself would take Ctrl-D, and the prompt would not see it.
        self.read_until(">>> ")
        self.write("\x04")
        code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        os.close(self._descriptor)
        return code


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_ctrl_c_ends_a_statement_and_not_the_shell(tmp_path: Path) -> None:
    shell = Terminal(tmp_path)
    shell.read_until(">>> ")
    shell.write("(print('wai' + 'ts', flush=True), await asyncio.sleep(600))\n")
    shell.read_until("waits")
    shell.interrupt()
    shell.read_until("KeyboardInterrupt")
    shell.read_until(">>> ")
    shell.write("await asyncio.sleep(0, 'goes' + ' on')\n")
    shell.read_until("'goes on'")
    assert shell.end() == 0
