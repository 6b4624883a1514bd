"""Answers that anybody may ask for, in pieces: who reads slowly holds one of them, not all."""

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from starlette.responses import StreamingResponse

PIECE: Final = 64 * 1024  # bytes: about as much as a server buffers of a connection


def in_pieces(data: bytes, headers: Mapping[str, str], media: str) -> StreamingResponse:
    """Return an answer that sends its next piece when the one before it is on its way."""
    length = {"content-length": str(len(data))}
    return StreamingResponse(_pieces(data), 200, {**headers, **length}, media)


async def _pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]
