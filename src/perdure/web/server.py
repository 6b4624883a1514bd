"""Serves the ASGI app by uvicorn, from a program: `perdure serve`, `dev` and `demo` use it.

Any other ASGI server will do. This one ends open streams as soon as it has to stop, and refuses
an address that others can reach unless the connection is encrypted, by it or by a proxy before it.
"""

import asyncio
import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from perdure.base.checked import Checked
from perdure.base.errors import DefinitionError, RequestRefused
from perdure.web.access.rates import address_key
from perdure.web.access.shares import Shares
from perdure.web.app import WebApp

LOOPBACK: Final = "127.0.0.1"
_GRACE: Final = 3  # seconds for requests that are under way
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_NAMES: Final = frozenset({"localhost", "ip6-localhost", "localhost.localdomain"})


class ServerSettings(Checked, frozen=True, kw_only=True):
    """Where to listen, and how.

    Attributes:
        host: The address.
        port: 0 takes any that is free.
        tls_certificate: The file with the certificate and its chain, for TLS.
        tls_key: The file with its key.
        trusted_proxy: The addresses of proxies whose `X-Forwarded-…` headers are believed, with
            commas between them; they encrypt the connection.
        root_path: The prefix under which a proxy serves it.
        signals: Whether SIGTERM and Ctrl-C stop it.
        head_timeout: Seconds within which a request must have begun: until the last line of its
            headers was sent. A connection that waits longer is closed.
        connections: How many are open at once; a further one is closed. One address has at most a
            quarter of them, unless it may be that of a proxy.
    """

    host: str = LOOPBACK
    port: int = 8080
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    trusted_proxy: str = ""
    root_path: str = ""
    signals: bool = True
    head_timeout: float = 75.0
    connections: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise DefinitionError("TLS needs both files: the certificate and its key")
        if not is_loopback(self.host) and self.tls_certificate is None and not self.trusted_proxy:
            raise DefinitionError(
                f"{self.host} can be reached by others, who would send their tokens in the clear: "
                "give a certificate and its key, or the address of the proxy that encrypts"
            )

    @property
    def scheme(self) -> str:
        """What its URL begins with."""
        return "http" if self.tls_certificate is None else "https"


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach an address."""
    if host.lower() in _NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def serve(
    asgi: WebApp, settings: ServerSettings, listening: Callable[[str], Any] | None = None
) -> None:
    """Serve until a signal or a cancellation stops it.

    Args:
        asgi: The app.
        settings: Where to listen.
        listening: Called with its URL when it listens.

    Raises:
        OSError: The port cannot be had.
    """
    listener = listener_at(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    url = f"{settings.scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.root_path}"
    server = _Server(asgi, settings, lambda: listening(url) if listening is not None else None)
    try:
        await server.serve(sockets=[listener])
    finally:
        asgi.shutdown.begin()
        listener.close()


def listener_at(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        OSError: It cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: otherwise asyncio does not switch Nagle's algorithm off, and every
    # answer of two writes waits forty milliseconds for an acknowledgement.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError:
        found.close()
        raise
    return found


class _Connection(AutoHTTPProtocol):
    """A connection that is closed if there are too many, or if no request comes.

    By itself, uvicorn takes any number of connections, and waits for slow headers for ever.
    """

    def __init__(self, *args: Any, head_timeout: float, places: Shares, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timeout = head_timeout
        self._places = places
        self._place: str | None = None
        self._seen: object = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        address = address_key(str((transport.get_extra_info("peername") or ("",))[0]))
        try:
            self._places.take(address)
        except RequestRefused:
            transport.close()
            return
        self._place = address
        self._look_later(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._place is not None:
            self._places.give_back(self._place)

    def _look_later(self, transport: asyncio.BaseTransport) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self._head_timeout, self._look, transport)

    def _look(self, transport: asyncio.BaseTransport) -> None:
        request = getattr(self, "cycle", None)  # the last one whose headers were complete
        is_over = request is None or request.response_complete
        if is_over and request is self._seen:
            transport.close()
        if not transport.is_closing():
            self._seen = request
            self._look_later(transport)


class _Server(uvicorn.Server):
    """uvicorn, which ends open streams when it stops."""

    def __init__(self, asgi: WebApp, settings: ServerSettings, started: Callable[[], Any]) -> None:
        most = settings.connections
        of_one = most if settings.trusted_proxy else 1
        places = Shares(most, "connections", at_least=of_one)
        config = uvicorn.Config(
            asgi,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            root_path=settings.root_path,
            proxy_headers=bool(settings.trusted_proxy),
            forwarded_allow_ips=settings.trusted_proxy or LOOPBACK,
            timeout_graceful_shutdown=_GRACE,
            timeout_keep_alive=round(settings.head_timeout) or 1,
            http=partial(_Connection, head_timeout=settings.head_timeout, places=places),  # pyright: ignore[reportArgumentType]  it is called, as a class would be
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=None if settings.tls_key is None else str(settings.tls_key),
        )
        super().__init__(config)
        self._asgi = asgi
        self._signals = settings.signals
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take over the signals, unless another part of the program has them.

        They are not raised again at the end, as uvicorn does: whoever serves still cleans up.
        """
        if not self._signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, and end the streams."""
        self._asgi.shutdown.begin()
        super().handle_exit(sig, frame)
