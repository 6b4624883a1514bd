"""The dashboard in a real Chromium: a server for an app, and pages that write down errors."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from perdure import App
from perdure.approvals import Person
from perdure.web.access.principal import Principal, Role
from perdure.web.app import WebApp
from perdure.web.dispatch import AccessGate
from perdure.web.server import ServerSettings, serve

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
# It speaks to nobody but us, and its own walls are no matter of these tests.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"

EVERYTHING = frozenset(set(Role) - {Role.SERVICE})
SIGNED_IN = 1e12  # far ahead: always recently


class OneGate:
    """Everybody who asks is the same person."""

    def __init__(self, id: str = "ann", roles: frozenset[Role] = EVERYTHING) -> None:
        self.principal = Principal(id=id, tenant=None, roles=roles, signed_in_at=SIGNED_IN)
        self.streams = 0

    async def authenticate(self, request: Request, /) -> Principal:
        self.streams += request.url.path.endswith("/api/v1/events")
        return self.principal

    @property
    def person(self) -> Person:
        """The same as a person who decides."""
        return Person(id=self.principal.id, tenant="default", roles=frozenset({"approver"}))


class Below:
    """An app that is mounted below a prefix of another one."""

    def __init__(self, asgi: WebApp, prefix: str) -> None:
        self.shutdown = asgi.shutdown
        self._asgi = asgi
        self._outer = Starlette(routes=[Mount(prefix, asgi)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._asgi if scope["type"] == "lifespan" else self._outer)(scope, receive, send)


@asynccontextmanager
async def served(app: App, gate: AccessGate | None = None, prefix: str = "") -> AsyncGenerator[str]:
    """Serve the API and the page of an app; gives their address."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asgi = app.asgi(access=gate or OneGate())
    below = cast("WebApp", Below(asgi, prefix)) if prefix else asgi
    server = asyncio.ensure_future(
        serve(below, ServerSettings(port=0, signals=False), ready.set_result)
    )
    try:
        yield await ready + prefix
    finally:
        asgi.shutdown.begin()
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


class Visit:
    """A page of a browser, and everything that went wrong on it."""

    def __init__(self, page: Page, site: str) -> None:
        self.page = page
        self.site = site
        self.wrong: list[str] = []
        page.set_default_timeout(60_000)  # milliseconds, for a busy machine
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            where = message.location.get("url", "").removeprefix(self.site)
            self.wrong.append(f"{message.type}: {message.text} {where}")

    async def open(self, path: str) -> Page:
        """Go to a path of the page, and wait until it is drawn and hears of changes."""
        await self.page.goto(self.site + path)
        await self.page.locator("main").wait_for()
        return self.page

    async def live(self) -> None:
        """Wait until the page hears of changes."""
        await self.page.locator(".connection.on").wait_for()


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """A browser without a screen."""
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visit(app: App, gate: OneGate | None = None, **options: Any) -> AsyncGenerator[Visit]:
    """Serve an app and open a page on it."""
    async with served(app, gate) as site, chromium() as browser:
        page = await browser.new_page(**options)
        yield Visit(page, site)
