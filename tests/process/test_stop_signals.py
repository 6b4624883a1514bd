"""SIGINT and SIGTERM, in a real program; each test waits for a line before it signals."""

import signal
import sys

import pytest

from tests.support.program import program

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")

INT, TERM = signal.SIGINT, signal.SIGTERM

# Main waits, and what it leaves behind says how it ends.
ORDERLY = """
async def worker():
    event = await process.events().receive()
    await sleep("10ms")
    say(f"worker {event.kind} {event.reason}")

async def main():
    process.spawn(worker)
    try:
        await sleep("10ms")
        say("ready")
        await wait_forever()
    finally:
        await sleep("10ms")
        say("main cleaned up")

perdure.run(main)
"""

# Main reads its events and ends by itself.
POLITE = """
async def main():
    process.events()
    say("ready")
    event = await process.events().receive()
    say(f"main {event.kind}")
    return 5

say(perdure.run(main))
"""

# Main and its child hear of the CANCEL and do not care.
STUBBORN = """
async def ignore(name):
    try:
        await process.events().receive()
        await sleep("100ms")  # what comes sooner is no second signal
        say(f"{name} asked")
        await wait_forever()
    finally:
        say(f"{name} ended")

async def main():
    process.spawn(ignore, "child")
    process.events()
    await sleep("10ms")
    say("ready")
    await ignore("main")

perdure.run(main, settings=Settings(stop_timeout="1h"))
"""

# Main cannot even be killed: it is abandoned.
REFUSING = """
async def main():
    process.events()
    say("ready")
    await process.events().receive()
    await sleep("100ms")
    say("asked")
    while True:
        try:
            await wait_forever()
        except asyncio.CancelledError:
            pass

perdure.run(main, settings=Settings(stop_timeout="1h", abandon_after="100ms"))
"""

# Main ends well, but a task that it started cannot be ended.
REFUSING_TASK = """
async def refuse():
    while True:
        try:
            await wait_forever()
        except asyncio.CancelledError:
            pass

async def main():
    task = asyncio.create_task(refuse())
    await sleep("10ms")
    say("ready")
    await wait_forever()

perdure.run(main, settings=Settings(abandon_after="100ms"))
"""

CAUGHT = """
async def main():
    say("ready")
    await wait_forever()

try:
    perdure.run(main)
except BaseException as error:
    say(f"{type(error).__name__} {getattr(error, 'code', None)}")
"""


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_signal_lets_everybody_clean_up_and_the_root_first(number: signal.Signals) -> None:
    with program(ORDERLY) as running:
        assert running.line() == "ready"
        running.signal(number)
        _, lines, _ = running.end()
    assert lines == ["main cleaned up", "worker pid.cancel the runtime stops"]


def test_sigterm_ends_the_program_with_143_and_without_a_complaint() -> None:
    with program(ORDERLY) as running:
        running.line()
        running.signal(TERM)
        code, _, complaints = running.end()
    assert code == 143
    assert complaints == ""


def test_sigint_ends_the_program_as_python_ends_by_it() -> None:
    with program(ORDERLY) as running:
        running.line()
        running.signal(INT)
        code, _, complaints = running.end()
    assert code in (-INT, 130)  # Python ends itself by the signal, a shell shows that as 130
    assert complaints.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    ("number", "expected"), [(INT, "KeyboardInterrupt None"), (TERM, "SystemExit 143")]
)
def test_the_caller_of_run_sees_the_signal_as_an_exception(
    number: signal.Signals, expected: str
) -> None:
    with program(CAUGHT) as running:
        running.line()
        running.signal(number)
        assert running.line() == expected
        assert running.end()[0] == 0


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_root_that_reads_its_events_gets_a_cancel_and_ends_with_its_value(
    number: signal.Signals,
) -> None:
    with program(POLITE) as running:
        running.line()
        running.signal(number)
        code, lines, complaints = running.end()
    assert lines == ["main pid.cancel", "5"]
    assert (code, complaints) == (0, "")


@pytest.mark.parametrize(("first", "second"), [(INT, INT), (TERM, TERM), (TERM, INT)])
def test_a_second_signal_kills_what_is_left(first: signal.Signals, second: signal.Signals) -> None:
    with program(STUBBORN) as running:
        running.line()
        running.signal(first)
        assert running.line() == "main asked"
        running.signal(second)
        code, lines, _ = running.end()
    assert sorted(lines) == ["child ended", "main ended"]
    assert code != 0


def test_a_signal_that_comes_twice_at_once_is_one() -> None:
    source = """
    import os, signal

    async def main():
        try:
            for _ in range(2):  # as `timeout` does: to the program, and to its group
                os.kill(os.getpid(), signal.SIGTERM)
            await wait_forever()
        finally:
            await sleep("100ms")  # which a kill would interrupt, again and again
            say("cleaned up")

    perdure.run(main)
    """
    with program(source) as running:
        code, lines, complaints = running.end()
    assert (code, lines, complaints) == (143, ["cleaned up"], "")


def test_a_program_whose_main_refuses_even_the_kill_still_ends() -> None:
    with program(REFUSING) as running:
        running.line()
        running.signal(TERM)
        assert running.line() == "asked"
        running.signal(TERM)
        code, _, complaints = running.end()
    assert code == 143
    assert "was killed and did not end" in complaints


def test_a_program_with_a_task_that_refuses_to_end_still_ends() -> None:
    with program(REFUSING_TASK) as running:
        running.line()
        running.signal(TERM)
        code, _, complaints = running.end()
    assert code == 143
    assert "refuse" in complaints


def test_a_signal_that_comes_while_the_rest_is_stopped_is_not_fatal() -> None:
    source = """
    async def worker():
        await process.events().receive()
        say("worker asked")
        await sleep("20ms")
        say("worker done")

    async def main():
        process.spawn(worker)
        await sleep("10ms")
        return 7

    say(perdure.run(main))
    """
    with program(source) as running:
        assert running.line() == "worker asked"
        running.signal(TERM)
        code, lines, complaints = running.end()
    assert lines == ["worker done", "7"]
    assert (code, complaints) == (0, "")
