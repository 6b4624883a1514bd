import asyncio
import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.base import telemetry
from perdure.base.errors import Shutdown
from perdure.base.telemetry import HANDLER_FAILURE, KNOWN_EVENTS, Event, Telemetry, Values
from tests.support.telemetry import FixedClock, Recorder

NAMES = st.sampled_from(["a", "b", "c"])
EVENTS = st.lists(NAMES, min_size=1, max_size=4).map(tuple[str, ...])
PREFIXES = st.lists(NAMES, max_size=3).map(tuple[str, ...])


@pytest.fixture
def table() -> Telemetry:
    return Telemetry(clock=FixedClock())


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def raising(error: BaseException) -> Callable[[Event, Values, Values, Any], None]:
    def handler(event: Event, measurements: Values, metadata: Values, config: Any) -> None:
        raise error

    return handler


def test_a_handler_gets_event_measurements_metadata_and_its_config(
    table: Telemetry, recorder: Recorder
) -> None:
    table.attach("log", ("app", "done"), recorder, {"level": 1})
    table.execute(("app", "done"), {"count": 2}, {"url": "u"})
    assert recorder.seen == [(("app", "done"), {"count": 2}, {"url": "u"}, {"level": 1})]


def test_measurements_metadata_and_config_may_be_left_out(
    table: Telemetry, recorder: Recorder
) -> None:
    table.attach("log", ("a",), recorder)
    table.execute(("a",))
    assert recorder.seen == [(("a",), {}, {}, None)]


def test_an_event_reaches_only_handlers_of_exactly_its_name(
    table: Telemetry, recorder: Recorder
) -> None:
    table.attach("log", ("a", "b"), recorder)
    for event in [("a",), ("a", "b", "c"), ("b",), ("a", "c")]:
        table.execute(event, {}, {})
    assert recorder.seen == []


def test_an_event_without_a_handler_is_fine(table: Telemetry) -> None:
    table.execute(("nobody", "listens"), {}, {})
    table.execute(("nobody", "listens"), {}, {})


def test_handlers_run_in_the_caller_before_execute_returns(table: Telemetry) -> None:
    threads: list[int] = []

    def handler(*_: object) -> None:
        threads.append(threading.get_ident())

    table.attach("log", ("a",), handler)
    table.execute(("a",), {}, {})
    assert threads == [threading.get_ident()]


def test_an_id_can_be_used_once(table: Telemetry, recorder: Recorder) -> None:
    table.attach("log", ("a",), recorder)
    with pytest.raises(ValueError, match="'log' is already attached"):
        table.attach("log", ("b",), recorder)
    table.execute(("b",), {}, {})
    assert recorder.seen == []


def test_one_id_on_many_events_is_detached_from_all_together(
    table: Telemetry, recorder: Recorder
) -> None:
    table.attach_many("log", [("a",), ("b",), ("a",)], recorder)
    table.execute(("a",), {}, {})
    table.execute(("b",), {}, {})
    assert recorder.events == [("a",), ("b",)]
    table.detach("log")
    table.execute(("a",), {}, {})
    table.execute(("b",), {}, {})
    assert len(recorder.seen) == 2
    table.attach("log", ("a",), recorder)


def test_an_unknown_id_cannot_be_detached(table: Telemetry) -> None:
    with pytest.raises(LookupError, match="no telemetry handler 'log' is attached"):
        table.detach("log")


@pytest.mark.parametrize("bad", ["a", ["a"], ("a", 1), ([],), None, 7, (None,), b"bytes"])
def test_an_event_that_is_no_tuple_of_text_is_refused(table: Telemetry, bad: Any) -> None:
    nothing: Any = print
    uses: list[Callable[[], object]] = [
        lambda: table.attach("x", bad, nothing),
        lambda: table.attach_many("x", [("ok",), bad], nothing),
        lambda: table.execute(bad, {}, {}),
        lambda: table.span(bad),
        lambda: table.list_handlers(bad),
    ]
    for use in uses:
        for _ in range(2):
            with pytest.raises(TypeError, match="a telemetry event is a non-empty tuple of str"):
                use()
    assert table.list_handlers() == []


def test_an_empty_event_is_refused(table: Telemetry, recorder: Recorder) -> None:
    uses: list[Callable[[], object]] = [
        lambda: table.attach("x", (), recorder),
        lambda: table.execute((), {}, {}),
        lambda: table.span(()),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="non-empty tuple of str"):
            use()
    with pytest.raises(ValueError, match="needs at least one event"):
        table.attach_many("x", [], recorder)


@pytest.mark.parametrize("bad", [[], "", None, 0])
def test_an_empty_prefix_that_is_no_tuple_is_refused(table: Telemetry, bad: Any) -> None:
    with pytest.raises(TypeError, match="tuple of str"):
        table.list_handlers(bad)


def test_a_handler_that_cannot_be_called_at_once_is_refused(table: Telemetry) -> None:
    async def handler(*_: object) -> None: ...

    wrong: Any = "handler"
    with pytest.raises(TypeError, match="must be callable"):
        table.attach("x", ("a",), wrong)
    with pytest.raises(TypeError, match="runs synchronously"):
        table.attach("x", ("a",), handler)


def test_remembered_names_are_bounded_and_later_ones_still_checked(
    table: Telemetry, recorder: Recorder
) -> None:
    for number in range(KNOWN_EVENTS + 10):
        table.execute(("event", str(number)), {}, {})
    assert len(table._by_event) == KNOWN_EVENTS  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    late = ("event", str(KNOWN_EVENTS + 5))
    table.attach("log", late, recorder)
    table.execute(late, {}, {})
    assert recorder.events == [late]
    with pytest.raises(ValueError, match="non-empty"):
        table.execute((), {}, {})


@given(st.lists(st.lists(EVENTS, min_size=1, max_size=4), max_size=6), PREFIXES)
def test_a_prefix_lists_one_entry_for_each_id_and_event_below_it(
    attached: list[list[Event]], prefix: Event
) -> None:
    table = Telemetry()
    for number, events in enumerate(attached):
        table.attach_many(number, events, Recorder())
    expected = [
        (number, event)
        for number, events in enumerate(attached)
        for event in dict.fromkeys(events)
        if event[: len(prefix)] == prefix
    ]
    assert [(each.id, each.event) for each in table.list_handlers(prefix)] == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(EVENTS, min_size=1)), max_size=12), EVENTS)
def test_an_event_reaches_just_those_whom_the_list_names(
    changes: list[tuple[int, list[Event]]], event: Event
) -> None:
    table = Telemetry()
    recorder = Recorder()
    for number, events in changes:  # a second mention of an id detaches it
        if number in {each.id for each in table.list_handlers()}:
            table.detach(number)
        else:
            table.attach_many(number, events, recorder, number)
    table.execute(event, {}, {})
    called = [config for *_, config in recorder.seen]
    assert called == [each.id for each in table.list_handlers() if each.event == event]


def test_a_listed_handler_shows_what_was_attached(table: Telemetry, recorder: Recorder) -> None:
    table.attach("log", ("a", "b"), recorder, "config")
    (entry,) = table.list_handlers(("a",))
    assert (entry.id, entry.event, entry.config) == ("log", ("a", "b"), "config")
    assert entry.handler is recorder


def test_a_raising_handler_is_detached_from_all_its_events_and_the_others_go_on(
    table: Telemetry, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    first, last = Recorder(), Recorder()
    table.attach("first", ("a",), first)
    table.attach_many("bad", [("a",), ("b",)], raising(KeyError("url")))
    table.attach("last", ("a",), last)
    table.attach("failures", HANDLER_FAILURE, recorder)

    table.execute(("a",), {}, {})
    table.execute(("a",), {}, {})
    table.execute(("b",), {}, {})

    assert len(first.seen) == len(last.seen) == 2
    assert {each.id for each in table.list_handlers()} == {"first", "last", "failures"}
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("perdure.telemetry", logging.ERROR)
    assert "'bad'" in record.getMessage()
    assert record.exc_info
    assert "KeyError: 'url'" in "".join(traceback.format_exception(*record.exc_info))


def test_a_failure_of_a_handler_is_an_event(
    table: Telemetry, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    error = KeyError("url")
    table.attach("failures", HANDLER_FAILURE, recorder)
    table.attach("bad", ("a",), raising(error), "config")
    table.execute(("a",), {"count": 1}, {})

    ((event, measurements, metadata, _),) = recorder.seen
    assert event == ("telemetry", "handler", "failure")
    assert measurements == {
        "monotonic_time": 1_001_000_000,
        "system_time": 1_700_000_000_000_000_000,
    }
    assert traceback.extract_tb(metadata["stacktrace"])[-1].name == "handler"
    assert {**metadata, "stacktrace": None} == {
        "event_name": ("a",),
        "handler_id": "bad",
        "handler_config": "config",
        "kind": "error",
        "reason": error,
        "stacktrace": None,
    }


def test_a_failing_handler_of_failures_is_detached_too(
    table: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    table.attach("watcher", HANDLER_FAILURE, raising(ValueError()))
    table.attach("bad", ("a",), raising(ValueError()))
    table.execute(("a",), {}, {})
    assert table.list_handlers() == []
    assert len(caplog.records) == 2


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Shutdown(), GeneratorExit()])
def test_an_exit_raised_by_a_handler_does_not_reach_the_emitter(
    table: Telemetry, recorder: Recorder, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    table.attach("failures", HANDLER_FAILURE, recorder)
    table.attach("bad", ("a",), raising(error))
    table.execute(("a",), {}, {})
    assert recorder.seen[0][2]["kind"] == "exit"
    assert [each.id for each in table.list_handlers()] == ["failures"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_the_end_of_the_program_passes_through_a_handler(
    table: Telemetry, error: BaseException
) -> None:
    table.attach("busy", ("a",), raising(error))
    with pytest.raises(type(error)):
        table.execute(("a",), {}, {})
    assert len(table.list_handlers()) == 1


def test_a_handler_that_triggers_itself_for_ever_is_detached(
    table: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    def echo(event: Event, *_: object) -> None:
        table.execute(event, {}, {})

    table.attach("echo", ("a",), echo)
    table.execute(("a",), {}, {})
    assert table.list_handlers() == []


def test_a_handler_may_detach_itself_and_attach_another(
    table: Telemetry, recorder: Recorder
) -> None:
    def once(event: Event, *_: object) -> None:
        table.detach("once")
        table.attach("next", event, recorder)

    table.attach("once", ("a",), once)
    table.execute(("a",), {}, {})
    assert recorder.seen == []
    table.execute(("a",), {}, {})
    assert recorder.events == [("a",)]


def test_a_late_failure_spares_the_new_handler_of_the_same_id(
    table: Telemetry, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def replaced(*_: object) -> None:
        table.detach("x")
        table.attach("x", ("a",), recorder)
        raise ValueError

    table.attach("x", ("a",), replaced)
    table.execute(("a",), {}, {})
    assert [each.handler for each in table.list_handlers()] == [recorder]


def test_threads_may_attach_and_tell_at_the_same_time(table: Telemetry, recorder: Recorder) -> None:
    gate = threading.Barrier(4)

    def work(number: int) -> None:
        gate.wait()
        for turn in range(100):
            table.attach((number, turn), ("a",), recorder, number)
            table.execute(("a",), {}, {})
            table.detach((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.list_handlers() == []
    heard = [config for *_, config in recorder.seen]
    assert all(heard.count(number) >= 100 for number in range(4))


def test_the_functions_of_the_module_share_one_table(recorder: Recorder) -> None:
    telemetry.attach("base-test", ("base", "test"), recorder)
    telemetry.attach_many("base-test-spans", [("base", "test", "stop")], recorder)
    try:
        assert [each.id for each in telemetry.list_handlers(("base", "test"))] == [
            "base-test",
            "base-test-spans",
        ]
        telemetry.execute(("base", "test"), {"n": 1}, {})
        with telemetry.span(("base", "test")):
            pass
    finally:
        telemetry.detach("base-test")
        telemetry.detach("base-test-spans")
    assert recorder.events == [("base", "test"), ("base", "test", "stop")]
    assert recorder.seen[1][1]["duration"] >= 0
