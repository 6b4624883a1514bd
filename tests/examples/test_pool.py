"""The demonstration: jobs crash workers, workers are restarted, no job is lost."""

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.pool.__main__ import main, parse
from examples.pool.console import Line
from examples.pool.supervisor import supervise
from perdure import process
from perdure.process import sleep
from perdure.testing import simulate, simulated

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_every_job_is_done_or_reported(
    seed: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(main, 4, 40, seed=seed)

    assert capsys.readouterr().out.splitlines() == [
        "4 workers, 40 jobs; some jobs crash the worker that does them.",
        "",
        "",
        "Jobs done:  38 of 40",
        "Given up:   job 13, job 38",
        "Crashes:    10",
    ]


def test_a_crash_is_told_with_its_reason_and_the_worker_comes_back_as_another_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    simulate(main, 1, 7)

    told = [message.partition("\n")[0] for message in caplog.messages]
    assert [re.sub(r"\{inline\|\d+\}", "<pid>", line) for line in told] == [
        "Worker 1 started: <pid>",
        "Supervisor started with 1 workers",
        "process <pid> crashed: ConnectionError: job 7 lost its connection",
        "Worker 1 died after 2.1s, restarting",
        "Attempt 1 of 3 at job 7 failed, again",
        "Worker 1 started: <pid>",
        "Worker 1 cancelled",
        "All workers have ended",
    ]
    first, second = (line for line in told if "Worker 1 started" in line)
    assert first != second


def test_a_worker_comes_back_after_100_ms(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ticks: list[int] = []

    async def count_the_starts() -> None:
        process.spawn(main, 1, 7)
        await sleep("2.15s")  # the seventh job has crashed its worker at 2.1 s
        ticks.append(caplog.text.count("Worker 1 started"))
        await sleep("100ms")
        ticks.append(caplog.text.count("Worker 1 started"))

    simulate(count_the_starts)

    assert ticks == [1, 2]


@simulated
async def test_a_cancel_stops_the_pool_in_order() -> None:
    pool = process.spawn_monitored(main, 4, None)
    await sleep("2s")

    process.cancel(pool)

    event = await process.events().receive()
    assert isinstance(event, process.Exit)
    assert event.result.ok
    assert [info.pid for info in process.processes()] == [process.self_pid()]


def test_the_health_check_counts_only_living_workers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def end_one_worker_politely() -> None:
        process.register("dispatcher")
        process.spawn(supervise, 3)
        ready = await process.inbox().receive()
        await sleep("61s")
        assert ready.sender is not None
        process.cancel(ready.sender)
        await sleep("61s")

    simulate(end_one_worker_politely)

    checks = [message for message in caplog.messages if message.startswith("Health check")]
    assert checks == ["Health check: 3 active workers", "Health check: 2 active workers"]


CRASH = logging.LogRecord("perdure", logging.ERROR, "", 0, "it crashed\nTraceback …", None, None)


@pytest.mark.parametrize(
    ("whole", "colourful", "shown"),
    [
        (False, False, "  it crashed"),
        (True, False, "  it crashed\nTraceback …"),
        (False, True, "  \x1b[31mit crashed\x1b[0m"),
    ],
)
def test_a_crash_report_is_one_line_unless_more_is_asked_for(
    whole: bool, colourful: bool, shown: str
) -> None:
    line = Line(whole=whole, colourful=colourful).format(CRASH)

    assert re.sub(r"^ *[0-9.]+s", "", line) == shown


@pytest.mark.parametrize("bad", ["0", "-1", "many"])
def test_a_bad_number_is_refused_with_a_sentence(
    bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--jobs", bad])

    assert "must be a number of 1 or more" in capsys.readouterr().err


# As a program


@contextmanager
def program(*options: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "examples.pool", *options]
    started = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def wait_for_line(started: subprocess.Popen[str], text: str) -> None:
    assert started.stdout is not None
    assert any(text in line for line in started.stdout), f"it ended without {text!r}"


def test_the_demonstration_ends_by_itself() -> None:
    with program("--workers", "2", "--jobs", "4") as started:
        output, _ = started.communicate(timeout=30)

    assert "Jobs done:  4 of 4" in output
    assert "Traceback" not in output
    assert started.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_demonstration_in_order(number: signal.Signals) -> None:
    with program("--forever") as started:
        wait_for_line(started, "Supervisor started")
        started.send_signal(number)
        output, _ = started.communicate(timeout=30)

    assert "Asked to stop" in output
    assert "All workers have ended" in output
    assert "Jobs done:" in output
    assert "Traceback" not in output
    assert started.returncode == 0


def test_a_second_signal_kills_the_demonstration() -> None:
    with program("--forever") as started:
        wait_for_line(started, "Supervisor started")
        os.kill(started.pid, signal.SIGINT)
        os.kill(started.pid, signal.SIGTERM)
        output, _ = started.communicate(timeout=30)

    assert "All workers have ended" not in output
    assert "Traceback" not in output
    assert started.returncode in (130, 143)  # whichever arrived first
