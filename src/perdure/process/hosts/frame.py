"""Frames: how packed signals go over a socket, many at once.

A frame is its own length, in eight bytes, and a msgpack list of signals.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

from msgspec.msgpack import Decoder

_LIST = 0xDD  # how a msgpack list begins, whose length is told in four bytes
_HEAD = Struct(">QBI")  # the length of the frame, and the beginning of the list
_HEAD_SIZE = _HEAD.size
_LENGTH = 8  # bytes before the list

LARGEST_SIGNAL = 1 << 30  # bytes; what is larger goes by a file, or by shared memory
# A frame is sent as soon as it has a large signal, or 4096 small ones (of up to 64 KiB).
LARGEST_FRAME = LARGEST_SIGNAL + (1 << 28)

_decode = Decoder(list[list[Any]]).decode
_write_head, _read_head = _HEAD.pack, _HEAD.unpack_from


def frame(signals: Sequence[bytes]) -> bytes:
    """Put packed signals into one frame."""
    body = b"".join(signals)
    return _write_head(_HEAD_SIZE + len(body), _LIST, len(signals)) + body


class Garbage(ValueError):
    """What came is no frame of ours; `items` are the signals that came before it."""

    def __init__(self, items: list[list[Any]]) -> None:
        super().__init__(f"invalid frame: not signals, or more than {LARGEST_FRAME:,} bytes")
        self.items = items


class Unframer:
    """Takes the frames out of what is read, piece by piece."""

    def __init__(self) -> None:
        self._kept = bytearray()  # the beginning of a frame

    def feed(self, data: bytes) -> list[list[Any]]:
        """Give the signals of all frames that are whole now.

        Raises:
            Garbage: This is no frame of ours.
        """
        items: list[list[Any]] = []
        size = len(data)
        try:
            if size > _HEAD_SIZE and not self._kept and _read_head(data)[0] == size:
                return _decode(data[_LENGTH:])  # one frame, and it is whole: nearly always
            self._kept += data
            for frame in _whole_frames(self._kept):
                items += _decode(frame)
        except (ValueError, RecursionError) as error:
            raise Garbage(items) from error
        return items


def _whole_frames(received: bytearray) -> Iterator[bytearray]:
    """Take the whole frames out of what was received."""
    start = 0
    while len(received) - start >= _HEAD_SIZE:
        length, kind, _ = _read_head(received, start)
        if kind != _LIST or not _HEAD_SIZE < length <= LARGEST_FRAME:
            raise ValueError("no head of a frame")
        end = start + length
        if len(received) < end:
            break
        yield received[start + _LENGTH : end]
        start = end
    del received[:start]
