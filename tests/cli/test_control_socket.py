"""The socket of a running `perdure up`: private, read-only, bounded."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from perdure.base.errors import ProcError
from perdure.entries import control_socket
from perdure.entries.control_socket import GetAnswer, ask, runtime_folder, serve_at, socket_of


def test_a_folder_that_others_can_enter_is_refused(private: Path) -> None:
    (private / "perdure").mkdir(mode=0o755)

    with pytest.raises(ProcError, match="is not private"):
        runtime_folder({"XDG_RUNTIME_DIR": str(private)})


def test_a_link_instead_of_a_folder_is_refused(private: Path) -> None:
    (private / "elsewhere").mkdir(mode=0o700)
    (private / "perdure").symlink_to(private / "elsewhere")

    with pytest.raises(ProcError, match="is not private"):
        runtime_folder({"XDG_RUNTIME_DIR": str(private)})


def test_without_a_folder_of_the_system_the_temporary_one_is_used(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(private))

    assert runtime_folder({}) == private / f"perdure-{os.getuid()}"


def test_each_folder_has_a_socket_of_its_own(private: Path) -> None:
    assert socket_of(Path("a"), private) == socket_of(Path("b/../a"), private)
    assert socket_of(Path("a"), private) != socket_of(Path("b"), private)


async def test_a_question_is_answered(private: Path) -> None:
    path = private / "s.sock"
    async with serve_at(path, always(b'{"a": 1}')):
        assert await asyncio.to_thread(ask, path) == {"a": 1}

    assert ask(path) is None


def always(text: bytes) -> GetAnswer:
    async def answer() -> bytes:
        return text

    return answer


async def failing() -> bytes:
    return bytes(1 // 0)


@pytest.mark.parametrize("question", [b"kill\n", b"x" * 10_000, b"\n"])
async def test_another_question_is_not(question: bytes, private: Path) -> None:
    path = private / "s.sock"
    async with serve_at(path, always(b'{"a": 1}')):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(question)
        assert await _read_all(reader) == b""
        writer.close()


async def test_one_asker_too_many_is_turned_away(private: Path) -> None:
    path = private / "s.sock"
    async with serve_at(path, always(b"{}")):
        waiting = [
            await asyncio.open_unix_connection(path) for _ in range(control_socket.MOST_CLIENTS)
        ]
        reader, writer = await asyncio.open_unix_connection(path)
        assert await _read_all(reader) == b""
        for _, each in waiting:
            each.close()
        writer.close()


async def test_who_asks_too_slowly_is_left(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "TIMEOUT", 0.01)
    path = private / "s.sock"
    async with serve_at(path, always(b"{}")):
        reader, writer = await asyncio.open_unix_connection(path)
        assert await _read_all(reader) == b""
        writer.close()


async def test_an_answer_that_cannot_be_understood_is_told(private: Path) -> None:
    path = private / "s.sock"
    async with serve_at(path, always(b"nonsense")):
        with pytest.raises(ProcError, match="it is running, but its answer cannot be read"):
            await asyncio.to_thread(ask, path)


async def test_an_answer_that_fails_is_logged_and_hurts_nobody(
    private: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = private / "s.sock"
    async with serve_at(path, failing):
        with pytest.raises(ProcError):
            await asyncio.to_thread(ask, path)

    assert caplog.messages == ["cannot answer a question at the control socket"]


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:  # it closed while more was on its way
        return b""
