"""The walks: every one is counted, and so is a call more."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bench import walk
from bench.__main__ import BENCHES, main
from bench.outcome import Options
from bench.walk import PACKAGE, Call, Recorder, Walk, count, shortest
from perdure import process

pytestmark = pytest.mark.once


def planted(file: str, source: str, **names: Any) -> Callable[..., Any]:
    """Make the function ``planted`` as if it stood in this file of Perdure."""
    exec(compile(source, f"{PACKAGE}/{file}", "exec"), names)
    return names["planted"]


def test_every_walk_is_printed_as_positive_whole_numbers_and_nothing_else_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert BENCHES["walk"] is walk.run

    assert main(["walk", "--json"]) == 0

    walks = json.loads(capsys.readouterr().out)
    assert list(walks) == list(walk.WANTED)
    for figures in walks.values():
        assert list(figures) == ["calls", "files", "switches"]
        assert all(type(figure) is int and figure > 0 for figure in figures.values())


def test_people_see_each_walk_beside_what_is_wanted_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["walk", "--only", "send", "call"]) == 0

    output = capsys.readouterr().out
    assert "12 / 8 / 10" in output
    assert "\ncall " in output
    assert "\ncrash " not in output


def test_an_unknown_walk_is_refused_with_the_names_of_the_known() -> None:
    with pytest.raises(ValueError, match=r"no such walk: stroll; there are step, gather"):
        walk.run(Options(only=("stroll",)))


def test_a_planted_call_is_counted_with_its_file_and_the_switch_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = count(shortest("send"))
    source = "def planted(*given):\n    return send(*given)"
    monkeypatch.setattr(process, "send", planted("planted.py", source, send=process.send))

    trace = shortest("send")

    assert count(trace) == Walk(before.calls + 1, before.files + 1, before.switches + 1)
    assert trace[0][0] == Call("planted.py", "planted")


def test_what_is_no_part_of_perdure_is_not_counted() -> None:
    recorder = Recorder()
    inside = planted("planted.py", "def planted(outside):\n    return outside()")

    def outside() -> list[int]:
        return sorted([2, 1])

    recorder.begin()
    inside(outside)
    recorder.end()

    assert recorder.traces == [[[Call("planted.py", "planted")]]]


def test_comprehensions_are_part_of_their_function_in_every_python() -> None:
    recorder = Recorder()
    source = "def planted():\n    return [sum(n for n in range(3)) for _ in range(3)]"
    inside = planted("planted.py", source)

    recorder.begin()
    inside()
    recorder.end()

    assert recorder.traces == [[[Call("planted.py", "planted")]]]


@pytest.mark.parametrize(("hands_over", "calls"), [(True, 1), (False, 0)])
def test_another_thread_counts_from_its_waking_until_it_hands_a_result_over(
    hands_over: bool, calls: int
) -> None:
    recorder = Recorder()
    work = planted("planted.py", "def planted():\n    pass")
    told, done = threading.Lock(), threading.Event()
    told.acquire()

    def call_soon_threadsafe() -> None:
        done.set()

    def serve() -> None:
        work()  # before it was told
        told.acquire()
        work()
        (call_soon_threadsafe if hands_over else done.set)()

    with recorder.in_new_threads():
        thread = threading.Thread(target=serve)
        recorder.begin()
        thread.start()
        told.release()
        done.wait()
        thread.join()
        recorder.end()

    assert count(recorder.traces[0]).calls == calls
