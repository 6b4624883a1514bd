"""httpx inside processes, against a server that is a process too."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import httpx
import pytest

import perdure
from perdure import process
from perdure.errors import Killed, Shutdown
from tests.support.http_server import Site, serving
from tests.support.processes import exit_of, me

Scene = Callable[[Site, httpx.AsyncClient], Awaitable[None]]


def play(scene: Scene) -> None:
    """Run a scene with a server and a client."""

    async def main() -> None:
        site = Site()
        async with serving(site) as address, httpx.AsyncClient(base_url=address) as client:
            await scene(site, client)

    perdure.run(main)


def test_a_process_gets_a_page() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        answer = await client.get("/page")

        assert answer.status_code == 200
        assert answer.text == "you asked for /page"
        assert (await client.get("/busy")).status_code == 503

    play(scene)


def test_many_requests_run_at_the_same_time() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        waiting = [asyncio.create_task(client.get("/gate")) for _ in range(20)]
        for _ in waiting:
            await site.requested.get()  # all twenty are there before one is answered
        site.gate.set()

        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}

    play(scene)


def test_many_processes_share_a_client() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        async def fetch(path: str) -> str:
            return (await client.get(path)).text

        pids = [process.spawn_monitored(fetch, f"/{number}") for number in range(20)]
        ends = [await process.events().receive() for _ in pids]

        texts = [end.result.value for end in ends if isinstance(end, process.Exit)]
        assert sorted(texts) == sorted(f"you asked for /{number}" for number in range(20))

    play(scene)


def test_the_time_out_of_httpx_ends_a_request() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/silent", timeout=httpx.Timeout(None, read=0.01))

        assert await site.hung_up.get() == "/silent"
        assert me().cancelling() == 0
        assert (await client.get("/page")).status_code == 200

    play(scene)


def test_the_time_out_of_asyncio_ends_a_request() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await client.get("/silent", timeout=None)

        assert me().cancelling() == 0
        assert (await client.get("/page")).status_code == 200

    play(scene)


def test_the_time_out_of_anyio_ends_a_request() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        with anyio.move_on_after(0.01) as scope:
            await client.get("/silent", timeout=None)

        assert scope.cancelled_caught
        assert me().cancelling() == 0
        assert (await client.get("/page")).status_code == 200

    play(scene)


@pytest.mark.parametrize("reason", [Shutdown, Killed])
def test_a_signal_in_the_middle_of_a_request_hangs_up(reason: type[BaseException]) -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        async def fetch() -> None:
            await client.get("/silent", timeout=None)

        pid = process.spawn_monitored(fetch)
        assert await site.requested.get() == "/silent"
        if reason is Killed:
            process.kill(pid)
        else:
            process.exit(Shutdown(), pid)

        assert isinstance((await exit_of(pid)).error, reason)
        assert await site.hung_up.get() == "/silent"
        assert (await client.get("/page")).status_code == 200

    play(scene)


def test_a_cancelled_task_in_the_middle_of_a_request_hangs_up() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        task = asyncio.create_task(client.get("/silent", timeout=None))
        await site.requested.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await site.hung_up.get() == "/silent"

    play(scene)


def test_a_place_in_the_pool_of_connections_is_not_lost_with_a_killed_process() -> None:
    async def main() -> None:
        site, one = Site(), httpx.Limits(max_connections=1)
        async with (
            serving(site) as address,
            httpx.AsyncClient(base_url=address, limits=one, timeout=30) as client,
        ):

            async def fetch() -> None:
                await client.get("/silent", timeout=None)

            for _ in range(3):
                pid = process.spawn_monitored(fetch)
                await site.requested.get()
                process.kill(pid)
                await exit_of(pid)
            assert (await client.get("/page")).status_code == 200

    perdure.run(main)


def test_a_refused_connection_is_an_error_like_any_other() -> None:
    async def main() -> None:
        async def fetch() -> None:
            async with httpx.AsyncClient() as client:
                await client.get("http://127.0.0.1:1/")

        pid = process.spawn_monitored(fetch)

        assert isinstance((await exit_of(pid)).error, httpx.ConnectError)

    perdure.run(main)


def test_a_page_can_be_streamed() -> None:
    async def scene(site: Site, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/page") as answer:
            parts = [part async for part in answer.aiter_text()]

        assert "".join(parts) == "you asked for /page"

    play(scene)
