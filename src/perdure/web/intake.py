"""The first thing that a request meets: what any client may hold of this server.

Whoever asks, and whichever route they want, these are checked in this order, and each costs next to
nothing: how often their address asks, how long URL and headers are, and how many requests they have
under way. The body is not read here. A route reads it only when it knows who asks, except where the
body itself says so: a form of the sign-in page, a link of a mail, a press in Slack. Those routes
have small bounds of their own.

What is read is counted until the answer was sent, for all clients together and for each of them: an
address, and once it is known who asks, their tenant. So unfinished bodies can neither fill the
memory nor keep others out. An answer that comes before the body was read ends the connection: the
client would otherwise go on sending what nobody wants.
"""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.base.errors import RequestRefused
from perdure.web.access.principal import Principal
from perdure.web.access.rates import address_key
from perdure.web.access.shares import Shares, share_of
from perdure.web.body import RequestLimits, check_head
from perdure.web.problem import problem_response

_HELD: Final = "perdure.held"  # where the scope of a request has what it holds
# A process manager that is refused would end a server which is only asked too often.
_ALWAYS: Final = "/healthz"
_CLOSE: Final = (b"connection", b"close")


class Intake:
    """Stands in front of an ASGI app."""

    def __init__(
        self, app: ASGIApp, limits: RequestLimits, count: Callable[[Request], None]
    ) -> None:
        """Hold nothing yet.

        Args:
            app: Answers what is taken in.
            limits: The limits.
            count: Refuses an address that asks too often.
        """
        self._app = app
        self._limits = limits
        self._count = count
        self.requests = Shares(limits.at_once, "requests")
        self.bodies = Shares(limits.bodies, "bytes of bodies", at_least=limits.body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        address = address_key(request.client.host if request.client else "")
        held = scope[_HELD] = Held(self, f"address {address}")
        app = self._app
        try:
            if scope["path"].removeprefix(scope.get("root_path", "")) != _ALWAYS:
                self._count(request)
                check_head(request, self._limits)
                held.begin()
        except RequestRefused as refused:
            app = problem_response(refused)
        try:
            await app(scope, held.counting(receive), held.closing(scope, send))
        finally:
            held.end()


class Held:
    """What one request holds: its place among those under way, and the bytes of its body."""

    def __init__(self, intake: Intake, who: str) -> None:
        self._intake = intake
        self._who = who
        self._is_under_way = False
        self._bytes = 0
        self._is_read = False  # to the end of the body
        self._is_answered = False

    def begin(self) -> None:
        """Count it among the requests of its client, or raise `RequestRefused`."""
        self._intake.requests.take(self._who)
        self._is_under_way = True

    def belongs_to(self, principal: Principal) -> None:
        """Count it for a tenant from now on, or raise `RequestRefused`; nothing is read yet."""
        self.let_go()
        self._who = share_of(principal)
        self.begin()

    def let_go(self) -> None:
        """Leave its place to others: it has ended, or it is a stream, which are counted apart."""
        if self._is_under_way:
            self._is_under_way = False
            self._intake.requests.give_back(self._who)

    def end(self) -> None:
        """Give everything back."""
        self.let_go()
        self._intake.bodies.give_back(self._who, self._bytes)
        self._bytes = 0

    def counting(self, receive: Receive) -> Receive:
        """Return what receives the body, and raises `RequestRefused` if too much is held."""

        async def counted() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                self._is_read = not message.get("more_body", False)
                if not self._is_answered:  # afterwards, nobody keeps what comes
                    size = len(message.get("body", b""))
                    self._intake.bodies.take(self._who, size)
                    self._bytes += size
            return message

        return counted

    def closing(self, scope: Scope, send: Send) -> Send:
        """Return what sends the answer, and ends the connection if the body was not read."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._is_answered = True
                if not self._is_read and _has_body(scope):
                    message["headers"] = [*message.get("headers", ()), _CLOSE]
            await send(message)

        return sent


def held_by(request: Request) -> Held:
    """Return what a request holds."""
    return request.scope[_HELD]


def _has_body(scope: Scope) -> bool:
    """Whether a body comes with a request over HTTP/1, on which another one might follow."""
    headers = dict(scope["headers"])
    announced = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
    return announced and scope.get("http_version", "") < "2"
