"""What the tests of `perdure.testing` with jobs share."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from perdure.app import App
from perdure.base.retry import idle
from perdure.testing import Environment, environment

Test = Callable[[App, Environment], Coroutine[Any, Any, None]]

NEVER_OPENED = "sqlite:///no/such/folder/production.db"


def in_environment(test: Test) -> Callable[..., None]:
    """Run a test with an app in an environment on the store `url`, on a plain asyncio loop."""

    def run(url: str) -> None:
        async def main() -> None:
            app = App(NEVER_OPENED)
            async with environment(app, url=url) as env:
                await test(app, env)
            assert app.url == NEVER_OPENED

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def looked_often() -> None:
    """Wait until an environment has had many chances to skip time."""
    for _ in range(50):
        await idle(0.001)


@contextmanager
def answering(gate: threading.Event) -> Generator[str]:
    """Run a server in a thread that answers when the gate is open; give its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gate.wait(30)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"late but well")

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002  it is theirs

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
