"""Serves an ASGI app from a thread, beside a worker: for metrics and probes.

The thread has an event loop of its own, so it answers while a step blocks that of the worker, and
whatever goes wrong in it harms nothing else.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

import uvicorn

_log = logging.getLogger("perdure.worker")

_STOP_WITHIN: Final = 1.0  # seconds


@contextlib.contextmanager
def serving(
    app: Callable[..., Awaitable[None]], host: str, port: int
) -> Generator[int | None, None, None]:
    """Serve an app inside the block; give the port, or None if it cannot be had, which is logged.

    Args:
        app: The ASGI app.
        host: The address to listen on.
        port: 0 takes any that is free.
    """
    try:
        listener = _listener(host, port)
    except OSError as error:
        _log.error("metrics cannot be served on %s:%d: %s", host, port, error)
        yield None
        return
    server = uvicorn.Server(_settings(app))
    thread = threading.Thread(
        target=_serve, args=(server, listener), name="perdure-metrics", daemon=True
    )
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = server.force_exit = True
        thread.join(_STOP_WITHIN)


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _settings(app: Callable[..., Awaitable[None]]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        loop="asyncio",
        http="h11",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=50,
        h11_max_incomplete_event_size=16 * 1024,
    )


def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    work: Any = server.serve([listener])
    try:
        asyncio.run(work)
    except (Exception, SystemExit):  # noqa: BLE001 - uvicorn exits the program on some errors
        _log.exception("the server of the metrics has ended; the worker goes on")
    finally:
        listener.close()
