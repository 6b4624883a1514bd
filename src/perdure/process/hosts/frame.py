"""Frames: how packed signals are sent over a socket in batches.

A frame is its length in eight bytes, and a msgpack list of signals.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

from msgspec.msgpack import Decoder

_LIST = 0xDD  # the first byte of a msgpack list with a length of four bytes
_HEAD = Struct(">QBI")  # the length of the frame, and the beginning of the list
_HEAD_SIZE = _HEAD.size
_LENGTH = 8  # bytes before the list

LARGEST_SIGNAL = 1 << 30  # bytes; pass what is larger by a file, or by shared memory
# A frame is sent as soon as it has a large signal, or 4096 small ones (of up to 64 KiB).
LARGEST_FRAME = LARGEST_SIGNAL + (1 << 28)

_decode = Decoder(list[list[Any]]).decode
_write_head, _read_head = _HEAD.pack, _HEAD.unpack_from


def frame(signals: Sequence[bytes]) -> bytes:
    """Return packed signals as one frame."""
    body = b"".join(signals)
    return _write_head(_HEAD_SIZE + len(body), _LIST, len(signals)) + body


class InvalidFrame(ValueError):
    """The received bytes are not a valid frame; `items` are the signals received before it."""

    def __init__(self, items: list[list[Any]]) -> None:
        super().__init__(f"invalid frame: not signals, or more than {LARGEST_FRAME:,} bytes")
        self.items = items


class Unframer:
    """Extracts frames from a byte stream, incrementally."""

    def __init__(self) -> None:
        self._kept = bytearray()  # the beginning of a frame

    def feed(self, data: bytes) -> list[list[Any]]:
        """Return the signals of all frames that are complete now.

        Raises:
            InvalidFrame: The bytes are not a valid frame.
        """
        items: list[list[Any]] = []
        size = len(data)
        try:
            if size > _HEAD_SIZE and not self._kept and _read_head(data)[0] == size:
                return _decode(data[_LENGTH:])  # exactly one complete frame: the usual case
            self._kept += data
            for frame in _complete_frames(self._kept):
                items += _decode(frame)
        except (ValueError, RecursionError) as error:
            raise InvalidFrame(items) from error
        return items


def _complete_frames(received: bytearray) -> Iterator[bytearray]:
    """Remove the complete frames from what was received, and yield them."""
    start = 0
    while len(received) - start >= _HEAD_SIZE:
        length, kind, _ = _read_head(received, start)
        if kind != _LIST or not _HEAD_SIZE < length <= LARGEST_FRAME:
            raise ValueError("not the head of a frame")
        end = start + length
        if len(received) < end:
            break
        yield received[start + _LENGTH : end]
        start = end
    del received[:start]
