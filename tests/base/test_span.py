import asyncio
import traceback

import pytest

from perdure.base.telemetry import Telemetry
from tests.support.telemetry import FixedClock, Recorder

SPAN_EVENTS = [("app", "fetch", end) for end in ("start", "stop", "exception")]


@pytest.fixture
def table() -> Telemetry:
    return Telemetry(clock=FixedClock())


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def spans(table: Telemetry, recorder: Recorder) -> Recorder:
    table.attach_many("spans", SPAN_EVENTS, recorder)
    return recorder


def test_a_span_tells_its_start_and_its_stop(table: Telemetry, spans: Recorder) -> None:
    with table.span(("app", "fetch"), url="u") as span:
        assert spans.events == [("app", "fetch", "start")]
        span.update(result="ok")
        span.measure(bytes=10)
    (_, at_start, before, _), (end, at_stop, after, _) = spans.seen
    assert at_start == {"monotonic_time": 1_001_000_000, "system_time": 1_700_000_000_000_000_000}
    assert before == {"url": "u", "telemetry_span_context": 1}
    assert end == ("app", "fetch", "stop")
    assert at_stop == {"duration": 1_000_000, "monotonic_time": 1_002_000_000, "bytes": 10}
    assert type(at_stop["duration"]) is int
    assert after == {"url": "u", "result": "ok", "telemetry_span_context": 1}


def test_stop_metadata_wins_over_start_metadata(table: Telemetry, spans: Recorder) -> None:
    with table.span(("app", "fetch"), url="first") as span:
        span.update(url="redirected")
        span.update(hops=1)
    assert [metadata["url"] for _, _, metadata, _ in spans.seen] == ["first", "redirected"]
    assert spans.seen[1][2]["hops"] == 1


def test_measurements_cannot_replace_the_times_of_the_span(
    table: Telemetry, spans: Recorder
) -> None:
    with table.span(("app", "fetch")) as span:
        span.measure(duration=-1, monotonic_time=-1)
    assert spans.seen[1][1] == {"duration": 1_000_000, "monotonic_time": 1_002_000_000}


def test_an_exception_is_told_and_goes_on(table: Telemetry, spans: Recorder) -> None:
    error = ValueError("bad")

    def work() -> None:
        with table.span(("app", "fetch"), url="u", kind="mine") as span:
            span.update(result="partial")
            span.measure(bytes=3)
            raise error

    with pytest.raises(ValueError, match="bad") as caught:
        work()
    assert caught.value is error
    assert spans.events == [("app", "fetch", "start"), ("app", "fetch", "exception")]
    _, measurements, metadata, _ = spans.seen[1]
    assert measurements == {"duration": 1_000_000, "monotonic_time": 1_002_000_000, "bytes": 3}
    assert [frame.name for frame in traceback.extract_tb(metadata["stacktrace"])] == ["work"]
    assert {**metadata, "stacktrace": None} == {
        "url": "u",
        "result": "partial",
        "kind": "error",
        "reason": error,
        "stacktrace": None,
        "telemetry_span_context": 1,
    }


async def test_a_cancelled_span_tells_an_exit(table: Telemetry, spans: Recorder) -> None:
    async def work() -> None:
        with table.span(("app", "fetch")):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spans.events[1] == ("app", "fetch", "exception")
    assert spans.seen[1][2]["kind"] == "exit"


async def test_spans_of_concurrent_tasks_keep_apart(table: Telemetry, spans: Recorder) -> None:
    async def work(number: int) -> None:
        with table.span(("app", "fetch"), number=number):
            await asyncio.sleep(0)

    await asyncio.gather(work(1), work(2))
    pairs = {(told["number"], told["telemetry_span_context"]) for _, _, told, _ in spans.seen}
    assert len(spans.seen) == 4
    assert {number for number, _ in pairs} == {1, 2}
    assert len({context for _, context in pairs}) == len(pairs) == 2


def test_a_given_span_context_is_kept(table: Telemetry, spans: Recorder) -> None:
    with table.span(("app", "fetch"), telemetry_span_context="mine") as span:
        span.update(telemetry_span_context="other")
    assert [metadata["telemetry_span_context"] for _, _, metadata, _ in spans.seen] == ["mine"] * 2


def test_metadata_may_have_any_name(table: Telemetry, spans: Recorder) -> None:
    with table.span(("app", "fetch"), prefix="p", self="s") as span:
        span.update(prefix="q")
        span.measure(prefix=1)
    assert spans.seen[1][2]["prefix"] == "q"


def test_a_handler_attached_during_a_span_hears_its_stop(
    table: Telemetry, recorder: Recorder
) -> None:
    with table.span(("app", "fetch")):
        table.attach_many("spans", SPAN_EVENTS, recorder)
    assert recorder.events == [("app", "fetch", "stop")]
