"""Parent and child trust each other with pickles: within limits, and with nobody else's."""

import pickle
import re
import socket
from pathlib import Path
from struct import pack as packed
from typing import Any

import pytest
from msgspec.msgpack import Ext

import perdure
from perdure.base.pid import Pid
from perdure.errors import NotPortable
from perdure.process.event import ExitResult, Message
from perdure.process.hosts import frame as frames
from perdure.process.hosts import packing, signals
from perdure.process.hosts.frame import InvalidFrame, Unframer, frame
from perdure.process.hosts.packing import pack_signal, unpack_signal
from perdure.process.hosts.pickling import pack, unpack
from perdure.process.hosts.wire import SocketWire
from tests.hosts.test_wire import closed, on_a_wire

ME = Pid("inline", None, 1)


class Trap:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


@pytest.mark.parametrize("length", [frames.LARGEST_FRAME + 1, 1 << 39, (1 << 64) - 1])
def test_a_frame_that_is_announced_as_larger_than_the_limit_is_garbage(length: int) -> None:
    with pytest.raises(InvalidFrame, match=f"{frames.LARGEST_FRAME:,}"):
        Unframer().feed(packed(">QBI", length, 0xDD, 1))


def test_a_frame_that_is_nested_without_end_is_garbage() -> None:
    deep = b"\x91" * 100_000 + b"\x00"
    with pytest.raises(InvalidFrame):
        Unframer().feed(frame([deep]))


@on_a_wire
async def test_a_worker_that_announces_too_much_is_heard_no_more(
    wire: SocketWire, other: socket.socket
) -> None:
    told: list[str] = []
    wire.on_garbage = lambda: told.append("garbage")
    other.sendall(packed(">QBI", frames.LARGEST_FRAME + 1, 0xDD, 1))
    await closed(wire)
    assert told == ["garbage"]


def test_what_is_too_large_is_refused_where_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LARGEST_SIGNAL", 1000)
    for payload in (b"x" * 2000, "x" * 2000, ["x" * 100] * 30, {"x": {1, "y" * 2000}}):
        with pytest.raises(NotPortable, match="the limit is 1,000"):
            pack_signal(signals.SendSignal(ME, Message("t", payload, None)))
    pack_signal(signals.SendSignal(ME, Message("t", "x" * 800, None)))


def test_an_end_is_told_though_its_value_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LARGEST_SIGNAL", 2000)
    sent = pack_signal(signals.ExitedSignal(ME, ExitResult("x" * 3000, None)))
    (item,) = Unframer().feed(frame([sent]))
    told = unpack_signal(item)
    assert isinstance(told, signals.ExitedSignal)
    assert told.outcome is not None
    assert isinstance(told.outcome.error, NotPortable)


def test_bytes_that_are_a_pickle_cross_as_bytes(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    trap = pickle.dumps(Trap(mark))
    for value in (
        trap,
        trap.decode("latin-1"),
        [trap],
        {"a": {"b": trap}},
        (trap,),
        {trap},
        Ext(1, trap),
        [Ext(1, trap)],
    ):
        (item,) = Unframer().feed(
            frame([pack_signal(signals.SendSignal(ME, Message("t", value, None)))])
        )
        told = unpack_signal(item)
        assert isinstance(told, signals.SendSignal)
        assert told.message.payload == value
        assert unpack(pack(value)) == value
    assert not mark.exists()
    pickle.loads(trap)
    assert mark.exists()


def test_nothing_is_unpickled_but_in_the_one_module_of_the_wire() -> None:
    folder = Path(perdure.__file__).parent
    pattern = re.compile(
        r"pickle\.loads?\b|Unpickler|\bmarshal\b|\bshelve\b|\bdill\b|cloudpickle|yaml\.(unsafe_|full_)?load\("
    )
    found = {path.name for path in folder.rglob("*.py") if pattern.search(path.read_text("utf-8"))}
    assert found == {"pickling.py"}
