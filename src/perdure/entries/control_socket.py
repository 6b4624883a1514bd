"""The control socket of a running `perdure up`: a Unix socket that only its user can open.

A client sends one question and gets one answer; nothing can be changed through it.
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
_log = logging.getLogger("perdure.entries")

TIMEOUT = 5.0  # seconds for a question or an answer
MOST_CLIENTS = 8  # at once; further ones are refused
LARGEST_ANSWER = 16 << 20

GetAnswer = Callable[[], Awaitable[bytes]]


def runtime_folder(environ: Mapping[str, str]) -> Path:
    """Return the private folder of the sockets, creating it if necessary.

    Raises:
        ProcError: Other users have access to it.
    """
    above = environ.get("XDG_RUNTIME_DIR")
    return made_private(Path(above) / "perdure" if above else temporary_folder())


def socket_of(folder: Path, runtime: Path) -> Path:
    """Return the path of the socket for a folder of entries."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return runtime / f"{name}.sock"


# The server side.


@contextlib.asynccontextmanager
async def serve_at(path: Path, answer: GetAnswer) -> AsyncGenerator[None, None]:
    """Answer questions at a socket inside the `async with` block.

    Raises:
        ProcError: Another program already answers there.
    """
    if ask(path) is not None:
        raise ProcError("it is already running: stop it first, or inspect it with `perdure tree`")
    server = await asyncio.start_unix_server(_Server(answer).serve, path, limit=1024)
    os.chmod(path, 0o600)  # noqa: PTH101 - a sync call, which does not wait for a disk
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108


class _Server:
    def __init__(self, answer: GetAnswer) -> None:
        self._answer = answer
        self._clients = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= MOST_CLIENTS:
                async with asyncio.timeout(TIMEOUT):
                    await self._serve(reader, writer)
        except (OSError, TimeoutError, ValueError):
            pass  # the client was too slow, sent too much, or went away
        except Exception:  # noqa: BLE001 - a question must not harm the services
            _log.exception("cannot answer a question at the control socket")
        finally:
            self._clients -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline() == QUESTION:
            writer.write(await self._answer())
            await writer.drain()


# The client side.


def ask(path: Path) -> dict[str, Any] | None:
    """Return the answer at a socket; None if nobody listens there.

    Raises:
        ProcError: Somebody listens, but does not answer.
    """
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(TIMEOUT)
        try:
            line.connect(str(path))
        except OSError:
            return None
        try:
            line.sendall(QUESTION)
            return _decoded(b"".join(_received(line)))
        except OSError as error:
            raise ProcError(f"it is running, but does not answer: {error}") from error


def ask_all(runtime: Path) -> list[dict[str, Any]]:
    """Return the answers at all sockets of a folder."""
    answers = map(ask, sorted(runtime.glob("*.sock")))
    return [answer for answer in answers if answer is not None]


def _received(line: socket.socket) -> Iterator[bytes]:
    size = 0
    while size <= LARGEST_ANSWER and (piece := line.recv(1 << 16)):
        size += len(piece)
        yield piece


def _decoded(answer: bytes) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", msgspec.json.decode(answer, type=dict))
    except msgspec.MsgspecError:
        raise ProcError("it is running, but its answer cannot be read") from None
