import asyncio
import contextlib
import logging
from collections.abc import Generator
from contextvars import ContextVar
from functools import partial

import pytest

from perdure import Settings, process
from perdure.errors import CallExit, Killed, LinkedProcessDown, Shutdown
from perdure.testing import simulated
from tests.support.processes import (
    crash,
    end_of,
    exit_of,
    give,
    link_down_of,
    others_rest,
    records,
    wait_forever,
)

Caplog = pytest.LogCaptureFixture


async def charge(customer: str, amount: int) -> None:
    check(customer)
    await asyncio.sleep(0)


def check(customer: str) -> None:
    raise LookupError(f"no such customer: {customer}")


# What it says


@simulated
async def test_a_report_tells_what_crashed_and_why_and_who_started_it(caplog: Caplog) -> None:
    process.register("desk")
    pid = process.spawn_monitored(charge, "kim", 5, name="billing")
    await exit_of(pid)
    [text] = records(caplog)
    lines = text.splitlines()
    assert lines[0] == f"process {pid} crashed: LookupError: no such customer: kim"
    assert lines[1] == "  function: tests.process.test_crash_report.charge('kim', 5)"
    assert lines[2] == f"  started by: {process.self_pid()} desk"
    assert "name: billing" in lines[3]


@simulated
async def test_a_report_is_one_record_of_level_error_that_reaches_the_root_logger(
    caplog: Caplog,
) -> None:
    await end_of(crash)
    [record] = caplog.records  # the handler of this fixture hangs at the root logger
    assert record.levelno == logging.ERROR
    assert record.name.startswith("perdure")


@simulated
async def test_a_report_tells_how_long_the_process_lived(caplog: Caplog) -> None:
    async def child() -> None:
        await process.sleep("90s")
        await crash()

    await end_of(child)
    assert "lived: 1m30s" in caplog.text


@simulated
async def test_a_report_shows_the_users_frames_and_none_of_ours(caplog: Caplog) -> None:
    await end_of(charge, "kim", 5)
    [text] = records(caplog)
    frames = [line.split(", in ")[1] for line in text.splitlines() if ", in " in line]
    assert frames == ["charge", "check"]
    assert "raise LookupError" in text


@simulated
async def test_the_frames_are_the_users_also_after_a_wait(caplog: Caplog) -> None:
    async def child() -> None:
        await process.sleep("1s")
        await asyncio.sleep(0)
        await crash()

    await end_of(child)
    [text] = records(caplog)
    frames = [line.split(", in ")[1] for line in text.splitlines() if ", in " in line]
    assert frames == ["child", "crash"]


@simulated
async def test_a_report_shows_the_cause_of_an_error(caplog: Caplog) -> None:
    async def child() -> None:
        try:
            await crash("first")
        except ValueError as error:
            raise RuntimeError("second") from error

    await end_of(child)
    [text] = records(caplog)
    assert "ValueError: first" in text
    assert "RuntimeError: second" in text


@simulated
async def test_a_report_shows_every_error_of_a_group(caplog: Caplog) -> None:
    async def child() -> None:
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    await end_of(child)
    [text] = records(caplog)
    assert "ValueError: one" in text
    assert "KeyError: 'two'" in text


@simulated
async def test_an_exit_by_hand_with_an_error_is_reported(caplog: Caplog) -> None:
    async def child() -> None:
        process.exit(ValueError("by hand"))

    await end_of(child)
    [text] = records(caplog)
    assert "ValueError: by hand" in text


@simulated
async def test_a_process_started_by_nobody_in_particular_is_reported_too(caplog: Caplog) -> None:
    async def parent() -> None:
        process.spawn(later)

    async def later() -> None:
        await process.sleep("1s")
        await crash()

    parent_pid = process.spawn_monitored(parent)
    await exit_of(parent_pid)
    await process.sleep("2s")
    [text] = records(caplog)
    assert f"started by: {parent_pid}" in text


@simulated
async def test_the_starter_is_named_by_its_function_if_it_has_no_name(caplog: Caplog) -> None:
    async def starter(prefix: str) -> None:
        await exit_of(process.spawn_monitored(charge, prefix, 5))

    pid = process.spawn_monitored(partial(starter, "kim"))
    await exit_of(pid)
    [text] = records(caplog)
    assert f"started by: {pid} {__name__}.{starter.__qualname__}\n" in text


@simulated
async def test_every_crash_is_reported_once_whoever_watches(caplog: Caplog) -> None:
    process.set_options(trap_links=True)
    pid = process.spawn_linked_monitored(crash)
    process.monitor(pid)
    await others_rest()
    assert len(caplog.records) == 1


# What is not reported


@pytest.mark.parametrize("reason", [None, Shutdown(), Shutdown("detail")], ids=repr)
def test_a_planned_end_logs_nothing(reason: BaseException | None, caplog: Caplog) -> None:
    async def child() -> None:
        process.exit(reason)

    @simulated
    async def main() -> None:
        await end_of(child)

    main()
    assert caplog.records == []


@simulated
async def test_a_kill_logs_no_error(caplog: Caplog) -> None:
    pid = process.spawn_monitored(wait_forever)
    await others_rest()
    process.kill(pid)
    assert isinstance((await exit_of(pid)).error, Killed)
    assert records(caplog) == []


@simulated
async def test_a_passed_deadline_of_a_cancel_logs_no_error(caplog: Caplog) -> None:
    pid = process.spawn_monitored(wait_forever)
    process.cancel(pid, "1s")
    await exit_of(pid)
    assert records(caplog) == []


@simulated
async def test_of_a_chain_that_dies_only_the_cause_is_reported(caplog: Caplog) -> None:
    async def node(depth: int) -> None:
        if depth == 0:
            await crash("the cause")
        process.spawn_linked(node, depth - 1)
        await wait_forever()

    assert isinstance((await end_of(node, 10)).error, LinkedProcessDown)
    [text] = records(caplog)
    assert "ValueError: the cause" in text
    assert "node(0)" in text


@simulated
async def test_a_forgotten_monitor_logs_nothing(caplog: Caplog) -> None:
    process.spawn_monitored(give)
    process.monitor(process.spawn(give))
    await others_rest()
    assert caplog.records == []


@simulated(settings=Settings(report_crashes=False))
async def test_reports_can_be_switched_off(caplog: Caplog) -> None:
    assert isinstance((await end_of(crash)).error, ValueError)
    assert caplog.records == []


# What must not break it


class Rude:
    def __repr__(self) -> str:
        raise ValueError("no repr")


class RudeError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@simulated
async def test_an_argument_whose_repr_raises_does_not_break_a_report(caplog: Caplog) -> None:
    async def child(_: Rude) -> None:
        await crash()

    await end_of(child, Rude())
    [text] = records(caplog)
    assert "raised ValueError" in text
    assert "ValueError: boom" in text


@simulated
async def test_an_error_whose_text_raises_does_not_break_the_kernel(caplog: Caplog) -> None:
    async def child() -> None:
        raise RudeError

    assert isinstance((await end_of(child)).error, RudeError)
    assert (await end_of(give, "goes on")).value == "goes on"
    assert "RudeError" in caplog.text


@simulated
async def test_an_error_whose_text_raises_reaches_links_and_callers() -> None:
    async def child() -> None:
        await process.inbox().receive()
        raise RudeError

    process.set_options(trap_links=True)
    pid = process.spawn_linked(child)
    call = asyncio.create_task(process.call(pid, "request"))
    await others_rest()
    process.send(pid, "fail")
    assert isinstance(await link_down_of(pid), RudeError)
    with pytest.raises(CallExit):
        await call


@contextlib.contextmanager
def at_the_root_logger(handler: logging.Handler) -> Generator[None]:
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class RudeHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the disk is full")


def test_a_log_handler_that_raises_does_not_break_the_kernel() -> None:
    @simulated
    async def main() -> None:
        assert isinstance((await end_of(crash)).error, ValueError)
        assert (await end_of(give, "goes on")).value == "goes on"

    with at_the_root_logger(RudeHandler()):
        main()


def test_a_log_handler_that_raises_does_not_keep_a_refusing_process_alive() -> None:
    async def refuse() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await wait_forever()

    @simulated(settings=Settings(abandon_after="1s"))
    async def main() -> None:
        pid = process.spawn_monitored(refuse)
        await others_rest()
        process.kill(pid)
        assert isinstance((await exit_of(pid)).error, Killed)

    with at_the_root_logger(RudeHandler()):
        main()


# In whose name it is written


REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


class Tagging(logging.Handler):
    """Notes the request that a record belongs to, as servers do in their logs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(REQUEST.get())


def test_a_report_is_written_in_the_context_of_the_process_that_crashed() -> None:
    async def handle(request: str, delay: float) -> None:
        REQUEST.set(request)
        await process.sleep(delay)
        await process.sleep(1 - delay)  # all wake in the same turn
        if request == "guilty":
            await crash()

    @simulated
    async def main() -> None:
        process.spawn(handle, "first", 0.1)
        process.spawn(handle, "guilty", 0.2)
        process.spawn(handle, "last", 0.3)
        await process.sleep("2s")

    handler = Tagging()
    with at_the_root_logger(handler):
        main()
    assert handler.seen == ["guilty"]
