"""The ASGI app behind a real uvicorn, and its streams of events as a browser reads them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from perdure import App
from perdure.web.dispatch import AccessGate
from perdure.web.server import ServerSettings, serve
from tests.support.web_client import TrustingGate

KIM = {"x-who": "kim@default operator,admin"}


@asynccontextmanager
async def served(
    app: App,
    access: AccessGate | None = None,
    head_timeout: float = 75.0,
    connections: int = 1000,
    **options: Any,
) -> AsyncGenerator[httpx.AsyncClient]:
    """The app behind a real server, and a client of it; without `access`, signed in as kim."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = ServerSettings(
        port=0, signals=False, head_timeout=head_timeout, connections=connections
    )
    asgi = app.asgi(access=access or TrustingGate(), **options)
    headers = KIM if access is None else {}
    async with asyncio.TaskGroup() as group:
        server = group.create_task(serve(asgi, settings, listening.set_result))
        async with httpx.AsyncClient(
            base_url=await listening, headers=headers, timeout=30
        ) as client:
            yield client
        server.cancel()


class Frames:
    """The events of a stream, as a browser reads them."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last_id = ""
        self.text = ""  # all that was read

    async def opened(self) -> None:
        """Wait until the stream says where it begins."""
        async for line in self._lines:
            self.text += line
            if line.startswith("id: "):
                return

    async def next(self, wanted: str) -> Any:
        """The data of the next event of this name; others are passed over."""
        name, data = "message", ""
        async for line in self._lines:
            self.text += line
            field, _, value = line.partition(": ")
            match field:
                case "event":
                    name = value
                case "data":
                    data = value
                case "id":
                    self.last_id = value
                case "":
                    if data and name == wanted:
                        return msgspec.json.decode(data)
                    name, data = "message", ""
                case _:
                    pass
        raise EOFError(f"the stream has ended before an event {wanted!r}")


@asynccontextmanager
async def following(
    client: httpx.AsyncClient, topics: str, last_id: str = "", *, prefix: str = "", **headers: str
) -> AsyncGenerator[Frames]:
    given = {"last-event-id": last_id, **headers}
    async with client.stream(
        "GET", f"{prefix}/api/v1/events", params={"topics": topics}, headers=given
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        frames = Frames(answer.aiter_lines())
        yield frames
