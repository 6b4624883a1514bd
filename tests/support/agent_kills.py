"""Kill -9 an agent at every durable point, resume it, and compare it with one that nobody killed.

A program is a module of tests with

    def build(url: str, log: Path) -> App: …    an app with a job `agent` without arguments, whose
                                                fake models and tools call `note(log, "model 1")`
    HAPPENED = …                                what an effect returned; if it has effects, which
                                                note their key too: `note(log, f"mail {key}")`
    async def people(app, handle) -> None: …    answers the questions that are open; if it asks any

`everywhere("tests.integrations.…", url, folder)` starts it in an interpreter of its own, which
imports everything once and forks: a child runs the job until it dies right before or after its
n-th write, another one resumes the job to its end, for every n.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.app import App
from perdure.engine import crashpoint
from perdure.engine.handle import Handle
from perdure.jobs.state import ENDED, JobState

POINTS = ("before_write", "after_write")
_KEY = re.compile(r" [0-9a-f]{64}\b")  # of an effect: each job has others
_LONGEST = 60.0  # seconds of one child; only for one that hangs


def note(log: Path, call: str) -> None:
    """Write down that something was really called, at once."""
    with log.open("a") as file:
        file.write(f"{call}\n")


class Ended(NamedTuple):
    """A job that has ended: where it was killed, what it returned, what was really called."""

    crash: str
    result: Any
    calls: list[str]

    @property
    def repeated(self) -> list[str]:
        """What was called more than once, as often as it was too often."""
        return sorted((Counter(self.calls) - Counter(set(self.calls))).elements())


def everywhere(
    program: str, url: str, folder: Path, points: Sequence[str] | None = None
) -> tuple[Ended, list[Ended]]:
    """Run a program undisturbed, then killed at every durable point; return what came of each.

    It dies only before its writes: after one, it is where it is before the next, but for calls in
    flight. With KILL_POINTS=all it also dies after each of them, which takes twice as long.
    """
    chosen = points or (POINTS if os.environ.get("KILL_POINTS") == "all" else POINTS[:1])
    command = [sys.executable, "-m", "tests.support.agent_kills", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as zygote:
        try:
            plain = _run(zygote, url, folder / "plain", "")
            assert plain is not None
            killed = [ended for point in chosen for ended in _each(zygote, url, folder, point)]
        finally:
            zygote.kill()
    return plain, killed


def check(plain: Ended, killed: list[Ended], *, at_once: int, once: tuple[str, ...] = ()) -> None:
    """Check that only calls in flight were repeated, and that the results are the same.

    Args:
        plain: The undisturbed run.
        killed: The others.
        at_once: How many calls are in flight at most.
        once: How calls that must never be repeated begin: the effects.
    """
    assert killed, "nothing was killed"
    for ended in killed:
        assert ended.result == plain.result, ended
        assert set(ended.calls) == set(plain.calls), ended
        assert len(ended.repeated) <= at_once, ended
        assert len(set(ended.repeated)) == len(ended.repeated), ended
        assert not [call for call in ended.repeated if call.startswith(once)] or not once, ended


def _each(zygote: "subprocess.Popen[str]", url: str, folder: Path, point: str) -> Iterator[Ended]:
    for number in count(1):
        crash = f"{point}:{number}"
        ended = _run(zygote, url, folder / f"{point}-{number}", crash)
        if ended is None:
            return
        yield ended


def _run(zygote: "subprocess.Popen[str]", url: str, folder: Path, crash: str) -> Ended | None:
    """Let a child run the job, and another one go on if it died; None if it did not."""
    folder.mkdir()
    code = _fork(zygote, url, folder, crash)
    if crash and code == 0:
        return None
    assert code == (-signal.SIGKILL if crash else 0), (crash, code)
    if crash:
        again = _fork(zygote, url, folder, "")
        assert again == 0, (crash, again)
    log = (folder / "log").read_text()
    calls = [_KEY.sub("", line) for line in log.splitlines()]
    return Ended(crash, json.loads((folder / "result").read_text()), calls)


def _fork(zygote: "subprocess.Popen[str]", url: str, folder: Path, crash: str) -> int:
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    zygote.stdin.write(json.dumps({"url": url, "folder": str(folder), "crash": crash}) + "\n")
    zygote.stdin.flush()
    line = zygote.stdout.readline()
    assert line, "the program could not be imported"
    return int(line)


# In the interpreter of the program


async def _to_its_end(program: Any, wanted: dict[str, str]) -> None:
    folder = Path(wanted["folder"])
    app: App = program.build(wanted["url"], folder / "log")
    async with asyncio.timeout(_LONGEST), app.running():
        handle: Handle[Any] = await app.submit(app.find_job("agent")(), key=str(folder), user="kim")
        answering = asyncio.create_task(_answer(program, app, handle, folder / "log"))
        result = await handle.result()
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering
    (folder / "result").write_text(json.dumps(result))
    await app.close()


async def _answer(program: Any, app: App, handle: Handle[Any], log: Path) -> None:
    """Do what people do: answer questions, and say what became of effects."""
    people = getattr(program, "people", None)
    while (state := await handle.until(JobState.WAITING, JobState.NEEDS_ATTENTION)) not in ENDED:
        if state is JobState.WAITING and people is not None:
            await people(app, handle)
        for line in await handle.effects():
            if line.state == "IN_DOUBT" and line.key in _read(log):
                await handle.resolve(line.no, "happened", result=program.HAPPENED, by="kim")
            elif line.state == "IN_DOUBT":
                await handle.resolve(line.no, "did not happen", by="kim")
        await perdure.process.sleep("5ms")


def _read(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def main(name: str) -> None:
    """Fork a child for each line of the input; say how it ended."""
    program = import_module(name)
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if not child:
            crashpoint.wanted = wanted["crash"]
            try:
                perdure.run(_to_its_end, program, wanted)
            except BaseException:  # noqa: BLE001 - it must not go on as the parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
