"""A small HTTP server on the loopback interface, as a process."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from perdure import process
from perdure.errors import Shutdown


class Site:
    """What the server has seen: which requests came, and how many connections were closed."""

    def __init__(self) -> None:
        self.requested: asyncio.Queue[str] = asyncio.Queue()
        self.hung_up: asyncio.Queue[str] = asyncio.Queue()
        self.gate = asyncio.Event()

    async def handle(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            while request := await reader.readline():
                while (await reader.readline()).strip():  # the headers, which say nothing to us
                    pass
                await self._answer(request.split()[1].decode(), reader, writer)
        finally:
            writer.close()

    async def _answer(self, path: str, reader: StreamReader, writer: StreamWriter) -> None:
        self.requested.put_nowait(path)
        if path == "/silent":  # until the client hangs up
            await reader.read()
            self.hung_up.put_nowait(path)
            return
        if path == "/gate":
            await self.gate.wait()
        body = f"you asked for {path}".encode()
        status = b"503 Busy" if path == "/busy" else b"200 OK"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()


async def serve(site: Site, started: "asyncio.Future[str]") -> None:
    """Serve the site until the process ends."""
    server = await asyncio.start_server(site.handle, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        started.set_result(f"http://{host}:{port}")
        await process.inbox().receive()
    finally:
        server.close()


@asynccontextmanager
async def serving(site: Site) -> AsyncGenerator[str]:
    """Run a server process inside the block; give its address."""
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = process.spawn_linked(serve, site, started)
    try:
        yield await started
    finally:
        process.unlink(server)
        process.exit(Shutdown(), server)
