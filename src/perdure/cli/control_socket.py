"""How a running `perdure up` can be asked: a Unix socket that only its user can open.

One question, one answer, and nothing can be changed by it.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from perdure.base.errors import ProcError
from perdure.base.machine import made_private, temporary_folder

QUESTION = b"tree\n"
_log = logging.getLogger("perdure.cli")

PATIENCE = 5.0  # seconds for a question or an answer
MOST_ASKERS = 8  # at once; one more is turned away
LARGEST_ANSWER = 16 << 20

Answer = Callable[[], Awaitable[bytes]]


def runtime_folder(environ: Mapping[str, str]) -> Path:
    """Return the private folder of the sockets; make it if it is not there.

    Raises:
        ProcError: Others can write to it.
    """
    above = environ.get("XDG_RUNTIME_DIR")
    return made_private(Path(above) / "perdure" if above else temporary_folder())


def socket_of(folder: Path, runtime: Path) -> Path:
    """Return the socket of what runs from a folder."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return runtime / f"{name}.sock"


# The side that answers


@contextlib.asynccontextmanager
async def open_door(path: Path, answer: Answer) -> AsyncGenerator[None, None]:
    """Answer questions inside the `async with` block.

    Raises:
        ProcError: Somebody else answers here already.
    """
    if ask(path) is not None:
        raise ProcError("it runs already: stop that one first, or look at it with `perdure tree`")
    server = await asyncio.start_unix_server(_Door(answer).serve, path, limit=1024)
    os.chmod(path, 0o600)  # noqa: PTH101 - neither it nor what is below waits for a disk
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108


class _Door:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._askers = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._askers += 1
        try:
            if self._askers <= MOST_ASKERS:
                async with asyncio.timeout(PATIENCE):
                    await self._serve(reader, writer)
        except (OSError, TimeoutError, ValueError):
            pass  # it asked too slowly, too much, or went away
        except Exception:  # noqa: BLE001 - what runs here must not suffer from a question
            _log.exception("a question cannot be answered")
        finally:
            self._askers -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline() == QUESTION:
            writer.write(await self._answer())
            await writer.drain()


# The side that asks


def ask(path: Path) -> dict[str, Any] | None:
    """Ask who answers at a socket; None if nobody does.

    Raises:
        ProcError: Somebody is there, and gives no answer.
    """
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(PATIENCE)
        try:
            line.connect(str(path))
        except OSError:
            return None
        try:
            line.sendall(QUESTION)
            return _understood(b"".join(_received(line)))
        except OSError as error:
            raise ProcError(f"it runs, but does not answer: {error}") from error


def everybody(runtime: Path) -> list[dict[str, Any]]:
    """Ask at every socket."""
    answers = map(ask, sorted(runtime.glob("*.sock")))
    return [answer for answer in answers if answer is not None]


def _received(line: socket.socket) -> Iterator[bytes]:
    size = 0
    while size <= LARGEST_ANSWER and (piece := line.recv(1 << 16)):
        size += len(piece)
        yield piece


def _understood(answer: bytes) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", msgspec.json.decode(answer, type=dict))
    except msgspec.MsgspecError:
        raise ProcError("it runs, but its answer cannot be understood") from None
