"""The URL indexer, against a real HTTP server on the loopback interface."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.url_indexer import (
    App,
    fetch_and_tokenize,
    http_get,
    inc_tokens,
    run,
    tokenize,
    top,
)
from examples.url_indexer.__main__ import parse
from perdure import process, telemetry
from perdure.errors import Shutdown
from perdure.otp import Err, Ok
from perdure.testing import simulated

ROOT = Path(__file__).parent.parent.parent

# Real I/O: the virtual clock waits so long for it before it jumps.
online = simulated(patience=0.05)


class Site:
    """What is served: for each path a row of answers, of which the last is repeated."""

    def __init__(self, **pages: Any) -> None:
        self.answers = {f"/{path}": list(answers) for path, answers in pages.items()}
        self.asked: Counter[str] = Counter()
        self.open = 0
        self.most_open = 0

    async def handle(self, reader: StreamReader, writer: StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        while (await reader.readline()).strip():
            pass
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self._answer(path, reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, path: str, reader: StreamReader, writer: StreamWriter) -> None:
        answers = self.answers.get(path, [404])
        answer = answers[min(self.asked[path], len(answers) - 1)]
        self.asked[path] += 1
        match answer:
            case None:  # says nothing until the client hangs up
                await reader.read()
                return
            case "hang up":
                return
            case int():
                head, body = f"{answer} No", b""
            case (int() as status, str() as place):
                head, body = f"{status} There\r\nLocation: {place}", b""
            case str():
                head, body = "200 OK", answer.encode()
            case _:
                raise AssertionError(answer)
        kind = "text/plain; charset=utf-8"
        writer.write(
            f"HTTP/1.1 {head}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()


async def serve(site: Site, started: "asyncio.Future[str]") -> None:
    server = await asyncio.start_server(site.handle, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        started.set_result(f"http://{host}:{port}")
        await process.inbox().receive()
    finally:
        server.close()


@asynccontextmanager
async def serving(**pages: Any) -> AsyncGenerator[tuple[str, Site]]:
    site = Site(**pages)
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = process.spawn_linked(serve, site, started)
    try:
        yield await started, site
    finally:
        process.unlink(server)
        process.exit(Shutdown(), server)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


# Words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        (" \n\t ", []),
        ("Hello, World! HELLO", ["hello", "world", "hello"]),
        ("엘릭서 Elixir와 파이썬!", ["엘릭서", "elixir와", "파이썬"]),
        ("<b>2024</b>년 3.14", ["b", "2024", "b", "년", "3", "14"]),
        ("don't stop-me", ["don", "t", "stop", "me"]),
        ("日本語 ㅋㅋ café", ["caf"]),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", ["한글"]),  # syllables written as letters
    ],
)
def test_a_text_is_split_into_latin_and_korean_words(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


# The index


@simulated
async def test_words_are_counted_and_the_most_frequent_come_first() -> None:
    async with App():
        await inc_tokens(["b", "a", "c", "a"])
        await inc_tokens(["a", "b", "d"])
        assert await top(2) == [("a", 3), ("b", 2)]
        assert await top(10) == [("a", 3), ("b", 2), ("c", 1), ("d", 1)]
        assert await top(0) == []


@simulated
async def test_the_tree_has_the_names_of_the_document_and_a_crash_restarts_only_the_index() -> None:
    names = ["App.Root", "App.Supervisor", "App.FetchSup", "App.Index"]
    async with App():
        before = {name: process.pid_of(name) for name in names}
        await inc_tokens(["lost"])
        process.kill("App.Index")
        while process.whereis("App.Index") in (None, before["App.Index"]):
            await process.sleep("1ms")
        after = {name: process.pid_of(name) for name in names}
        assert {name for name in names if before[name] is not after[name]} == {"App.Index"}
        assert await top(20) == []
    assert [process.whereis(name) for name in names] == [None] * 4


# One page


@online
async def test_a_page_gives_its_text() -> None:
    async with serving(page=["안녕 world"]) as (address, _):
        assert await http_get(f"{address}/page") == Ok("안녕 world")


@online
async def test_any_status_but_200_is_an_error() -> None:
    async with serving(busy=[503], made=[201]) as (address, _):
        assert await http_get(f"{address}/busy") == Err(("http", 503))
        assert await http_get(f"{address}/made") == Err(("http", 201))
        assert await http_get(f"{address}/unknown") == Err(("http", 404))


@online
async def test_a_page_that_has_moved_is_followed() -> None:
    async with serving(old=[(301, "/new")], new=["here"]) as (address, _):
        assert await http_get(f"{address}/old") == Ok("here")


@online
async def test_a_server_that_says_nothing_is_a_time_out() -> None:
    async with serving(silent=[None]) as (address, _):
        assert await http_get(f"{address}/silent", timeout=0.5) == Err("timeout")


@online
async def test_a_server_that_hangs_up_or_is_not_there_is_an_error() -> None:
    async with serving(rude=["hang up"]) as (address, _):
        rude = await http_get(f"{address}/rude")
    assert isinstance(rude, Err)
    assert isinstance(rude.error, httpx.RemoteProtocolError)
    for url in ("http://127.0.0.1:1/", "nonsense", "ftp://example.com", "http://[", ""):
        gone = await http_get(url)
        assert isinstance(gone, Err), url
        assert isinstance(gone.error, httpx.HTTPError | httpx.InvalidURL), url


@online
async def test_a_page_is_counted() -> None:
    async with App(), serving(page=["a b a"]) as (address, _):
        assert await fetch_and_tokenize(f"{address}/page") == Ok(3)
        assert await top(5) == [("a", 2), ("b", 1)]


def test_a_server_that_is_busy_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    @online
    async def main() -> None:
        async with App(), serving(page=[503, "hang up", 503, "at last"]) as (address, site):
            assert await fetch_and_tokenize(f"{address}/page") == Ok(2)
            assert site.asked["/page"] == 4
            assert await top(5) == [("at", 1), ("last", 1)]

    main()
    assert warnings(caplog) == []


def test_what_fails_four_times_is_logged_once_and_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @online
    async def main() -> None:
        async with App(), serving(page=[503]) as (address, site):
            assert await fetch_and_tokenize(f"{address}/page") == Err(("http", 503))
            assert site.asked["/page"] == 4
            assert await top(5) == []

    main()
    [line] = warnings(caplog)
    assert re.fullmatch(r"fetch failed http://127\.0\.0\.1:\d+/page: HTTP 503", line)


@online
async def test_each_fetch_is_measured() -> None:
    seen: list[tuple[str, object]] = []

    def note(event: object, measured: Any, about: Any, config: object) -> None:
        assert measured["duration"] >= 0
        seen.append((about["url"].rpartition("/")[2], about["result"]))

    telemetry.attach("test", ("app", "fetch", "stop"), note)
    try:
        async with App(), serving(page=["a"]) as (address, _):
            await fetch_and_tokenize(f"{address}/page")
            await fetch_and_tokenize(f"{address}/none")
    finally:
        telemetry.detach("test")
    assert seen == [("page", Ok(1)), ("none", Err(("http", 404)))]


# Many pages


def test_pages_that_fail_are_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    @online
    async def main() -> None:
        pages = {"one": ["a b c"], "two": ["a b"], "bad": [500], "silent": [None]}
        async with App(), serving(**pages) as (address, _):
            urls = [f"{address}/{page}" for page in ("bad", "one", "silent", "two")]
            assert await run(urls, 2) == [("a", 2), ("b", 2), ("c", 1)]

    main()
    told = sorted(line.rpartition("/")[2] for line in warnings(caplog))
    assert told == ["bad: HTTP 500", "silent: timeout"]


@online
async def test_no_more_pages_are_fetched_at_once_than_allowed() -> None:
    async with App(), serving(page=["a"]) as (address, site):
        assert await run([f"{address}/page"] * 20, 3) == [("a", 20)]
        assert 1 <= site.most_open <= 3


@online
async def test_progress_is_told() -> None:
    seen: list[int] = []
    async with App(), serving(page=["a"]) as (address, _):
        urls = [f"{address}/page", f"{address}/none", f"{address}/page"]
        await run(urls, 2, progress=lambda done, _begun: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 3


@online
async def test_no_pages_give_no_words() -> None:
    async with App():
        assert await run([]) == []


@online
async def test_a_runner_that_is_stopped_leaves_no_fetch_behind() -> None:
    async with App(), serving(silent=[None]) as (address, site):
        runner = process.spawn_monitored(run, [f"{address}/silent"] * 4, 4)
        while site.open < 4:
            await process.sleep("1ms")
        process.exit(Shutdown(), runner)
        await process.events().receive()
        while site.open:
            await process.sleep("1ms")


@online
async def test_an_index_that_crashes_costs_its_counts_and_not_the_run() -> None:
    def sabotage(done: int, _begun: int) -> None:
        if done == 4:
            process.kill("App.Index")

    async with App(), serving(page=["a"]) as (address, _):
        [(word, count)] = await run([f"{address}/page"] * 10, 1, progress=sabotage)
    assert word == "a"
    assert 1 <= count <= 6


# The command


@contextmanager
def website(pages: dict[str, str | None]) -> Generator[tuple[str, threading.Event]]:
    """Serve pages from threads; one that is None answers only when all is over."""
    asked, over = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.strip("/"), "")
            if page is None:
                asked.set()
                over.wait()
                return
            body = page.encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def command(*arguments: str) -> Generator["subprocess.Popen[str]"]:
    line = [sys.executable, "-m", "examples.url_indexer", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "200"}
    with subprocess.Popen(
        line,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_the_command_prints_the_most_frequent_words_and_logs_failures() -> None:
    with website({"one": "파이썬 python 파이썬", "two": "python perdure 파이썬"}) as (address, _):
        urls = [f"{address}/{page}" for page in ("one", "two", "none")]
        with command(*urls, "--top", "2") as running:
            out, err = running.communicate(timeout=30)
    assert out == "3  파이썬\n2  python\n"
    assert f"fetch failed {urls[2]}: HTTP 404" in err
    assert running.returncode == 0


def test_the_command_fails_if_no_page_could_be_counted() -> None:
    with website({}) as (address, _), command(f"{address}/none") as running:
        out, _err = running.communicate(timeout=30)
    assert (out, running.returncode) == ("", 1)


def test_ctrl_c_stops_in_order_and_prints_what_was_counted() -> None:
    with website({"page": "a b a", "silent": None}) as (address, asked):
        urls = [f"{address}/page", f"{address}/silent"]
        with command(*urls, "--concurrency", "1", "--timeout", "60") as running:
            assert asked.wait(20)  # so the first page is counted
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=20)
    assert out == "2  a\n1  b\n"
    assert "counted so far" in err
    assert "Traceback" not in err
    assert running.returncode == 0


@pytest.mark.parametrize("arguments", [[], ["http://a", "--top", "0"], ["http://a", "--top", "x"]])
def test_a_command_line_that_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
