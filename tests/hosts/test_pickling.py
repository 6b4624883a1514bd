"""What crosses to another OS process comes back as it was, or as a faithful copy."""

import threading
from typing import Any

import pytest
from msgspec.msgpack import Ext

from perdure.errors import (
    CallExit,
    CallTimeout,
    HostDown,
    Killed,
    LinkedProcessDown,
    NameTaken,
    NoProcess,
    NotPortable,
    RemoteError,
    Shutdown,
    StartError,
)
from perdure.process import Channel, Pid
from perdure.process.event import ExitResult
from perdure.process.exit_reason import EXIT_WITHOUT_VALUE
from perdure.process.hosts import signals
from perdure.process.hosts.frame import InvalidFrame, Unframer, frame
from perdure.process.hosts.packing import pack_signal, unpack_signal
from perdure.process.hosts.pickling import RemoteRepr, dumps, loads, pack, pid_address, unpack
from tests.support.work import Explosive, Odd

SOMEBODY = Pid("inline", object())


def there_and_back(value: Any) -> Any:
    return loads(dumps(value))


def test_a_channel_is_refused_for_nobody_would_hear_what_is_sent_into_its_copy() -> None:
    with pytest.raises(NotPortable, match="a Channel belongs to one loop: send messages"):
        dumps(["work", Channel[int]()])


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text", 1),
        KeyError("key"),
        FileNotFoundError(2, "no such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        ExceptionGroup("many", [ValueError(1), KeyError(2)]),
        ImportError("no module", name="it", path="there"),
        Odd(3, "why"),
        Killed("detail"),
        Shutdown({"a": 1}),
        HostDown("cpu", "cpu.1", "killed"),
        NoProcess(SOMEBODY, "send"),
        NameTaken("name", SOMEBODY),
        CallExit(ValueError("x"), "the call"),
        CallTimeout(TimeoutError("late"), "the call"),
        StartError("child", ValueError("x")),
        LinkedProcessDown(SOMEBODY, ValueError("x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_keeps_its_class_its_text_and_its_fields(error: BaseException) -> None:
    back = there_and_back(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert repr(back) == repr(error)
    assert set(vars(back)) == set(vars(error))
    for name, value in vars(error).items():
        assert repr(getattr(back, name)) == repr(value)


def test_a_field_that_is_kept_beside_the_others_comes_along() -> None:
    assert there_and_back(ImportError("no module", name="it")).name == "it"


def test_a_cause_comes_along() -> None:
    error = ValueError("outer")
    error.__cause__ = Odd(1, "inner")
    cause = there_and_back(error).__cause__
    assert isinstance(cause, Odd)
    assert cause.why == "inner"


def test_the_traceback_comes_along_as_a_note() -> None:
    def raise_it() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here") as raised:
        raise_it()
    [note] = there_and_back(raised.value).__notes__
    assert "in raise_it" in note


def test_an_exception_of_a_local_class_is_told_in_words() -> None:
    class Local(Exception):
        pass

    back = there_and_back(Local("what happened"))
    assert isinstance(back, RemoteError)
    assert back.kind.endswith("Local")
    assert back.text == "what happened"


def test_a_field_that_cannot_cross_is_told_in_words() -> None:
    error = ValueError("x")
    error.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
    odd = Odd(1, "x")
    odd.why = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(there_and_back(odd).why, RemoteRepr)
    assert isinstance(there_and_back(error).lock, RemoteRepr)


def test_of_exceptions_that_wrap_each_other_each_crosses_once() -> None:
    error: Exception = ValueError("first")
    for number in range(30):
        outer = Odd(number, "outer")
        outer.inner = outer.__cause__ = error  # pyright: ignore[reportAttributeAccessIssue]
        error = outer
    packed = dumps(error)
    assert len(packed) < 30_000
    back = loads(packed)
    assert back.inner is back.__cause__
    for _ in range(30):
        back = back.__cause__
    assert str(back) == "first"


def test_a_ring_of_causes_comes_back_as_a_ring() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    back = there_and_back(one)
    assert str(back.__cause__) == "other"
    assert back.__cause__.__cause__ is back


def test_a_ring_of_arguments_is_told_in_words_where_it_closes() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.args, other.args = ("one", other), ("other", one)
    back = there_and_back(one)
    assert isinstance(back.args[1], ValueError)
    assert isinstance(back.args[1].args[1], RemoteError)


def test_a_chain_of_thousands_of_causes_crosses() -> None:
    error = ValueError(0)
    for number in range(1, 5000):
        outer = ValueError(number)
        outer.__cause__ = error
        error = outer
    back: BaseException | None = there_and_back(error)
    numbers: list[int] = []
    while back is not None:
        numbers.append(back.args[0])
        back = back.__cause__
    assert numbers == list(reversed(range(5000)))


def test_one_cause_that_cannot_cross_harms_no_other() -> None:
    class Local(Exception):
        pass

    outer, middle = Odd(1, "outer"), Local("middle")
    outer.__cause__, middle.__cause__ = middle, Odd(2, "inner")
    back = there_and_back({"failed": outer})["failed"]
    assert isinstance(back, Odd)
    assert isinstance(back.__cause__, RemoteError)
    assert isinstance(back.__cause__.__cause__, Odd)


def test_a_pid_is_the_same_object_again() -> None:
    assert there_and_back({"pid": [SOMEBODY]})["pid"][0] is SOMEBODY


def test_an_end_without_a_value_stays_that() -> None:
    assert there_and_back(EXIT_WITHOUT_VALUE) is EXIT_WITHOUT_VALUE


def test_what_cannot_cross_is_refused_with_advice() -> None:
    with pytest.raises(NotPortable, match="functions and classes of a module"):
        dumps(threading.Lock())


@pytest.mark.parametrize("value", [None, True, 1, -(2**63), 1.5, "a", b"b", [1, ["a"]], {"a": [1]}])
def test_plain_values_need_no_pickle(value: object) -> None:
    assert pack(value) is value


@pytest.mark.parametrize("value", [(1,), {1: 2}, {1}, SOMEBODY, [1, (2,)], list(range(99))])
def test_other_values_are_pickled(value: Any) -> None:
    packed = pack(value)
    assert isinstance(packed, Ext)
    assert unpack(packed) == value


def sent(signal: signals.Signal) -> Any:
    """Give what arrives of a signal."""
    pid_address(SOMEBODY)  # whoever gets signals is known there, for it has gone out before
    [item] = Unframer().feed(frame([pack_signal(signal)]))
    return unpack_signal(item)


SIGNALS: list[signals.Signal] = [
    signals.RequestSignal(SOMEBODY, 1, (1, 2), None),
    signals.ReplySignal(1, ValueError),
    signals.ExitedSignal(SOMEBODY, None),
    signals.ExitedSignal(SOMEBODY, ExitResult(None, None)),
    signals.ExitedSignal(SOMEBODY, ExitResult({1, 2}, None)),
    signals.CancelSignal(SOMEBODY, None, 1.5, "why"),
    signals.HostsSignal(["cpu"]),
]


@pytest.mark.parametrize("signal", SIGNALS, ids=range(len(SIGNALS)))
def test_a_signal_arrives_as_it_was(signal: signals.Signal) -> None:
    assert sent(signal) == signal


def test_a_process_that_left_is_told_from_one_that_returned_none() -> None:
    assert sent(signals.ExitedSignal(SOMEBODY, EXIT_WITHOUT_VALUE)).outcome is EXIT_WITHOUT_VALUE
    assert sent(signals.ExitedSignal(SOMEBODY, ExitResult())).outcome is not EXIT_WITHOUT_VALUE


@pytest.mark.parametrize("value", [2**64, -(2**64), "\ud800", [2**64], {"\udcff": 1}])
def test_what_msgpack_cannot_say_is_pickled(value: object) -> None:
    assert sent(signals.ReplySignal(1, value)) == signals.ReplySignal(1, value)


def test_the_end_of_a_process_arrives_even_if_its_value_cannot_be_unpacked() -> None:
    outcome = sent(signals.ExitedSignal(SOMEBODY, ExitResult(Explosive(), None))).outcome
    assert isinstance(outcome.value, RemoteRepr)
    assert "not here" in outcome.value.text


def test_the_end_of_a_process_arrives_whatever_its_error_is() -> None:
    error = ValueError("ring")
    error.__cause__ = KeyError("of causes")
    error.__cause__.__cause__ = error
    outcome = sent(signals.ExitedSignal(SOMEBODY, ExitResult(None, error))).outcome
    assert isinstance(outcome.error, ValueError)


def test_a_kill_arrives_even_if_its_detail_cannot_be_unpacked() -> None:
    assert sent(signals.KillSignal(SOMEBODY, Explosive())).dest is SOMEBODY


# Frames


@pytest.mark.parametrize("size", [1, 7, 8, 13, 20, 1000])
def test_frames_come_whole_out_of_pieces_of_any_size(size: int) -> None:
    told = [signals.HostsSignal([str(number)]) for number in range(50)]
    data = frame([pack_signal(each) for each in told[:1]])
    data += frame([pack_signal(each) for each in told[1:]])
    unframer, items = Unframer(), list[Any]()
    for start in range(0, len(data), size):
        items += unframer.feed(data[start : start + size])
    assert [unpack_signal(item) for item in items] == told


@pytest.mark.parametrize(
    "data",
    [b"hello, is anybody there?", bytes(100), b"\xff" * 100, frame([b"\x01"]), frame([b"\xc1"])],
    ids=["text", "zeros", "ones", "no signal", "no msgpack"],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    before = pack_signal(signals.WorkerReadySignal())
    with pytest.raises(InvalidFrame) as raised:
        Unframer().feed(frame([before]) + data)
    assert [unpack_signal(item) for item in raised.value.items] == [signals.WorkerReadySignal()]
    with pytest.raises(InvalidFrame):
        Unframer().feed(data)
