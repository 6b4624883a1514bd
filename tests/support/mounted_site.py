"""A site of a web framework with `app.asgi()` mounted in it, served by a plain uvicorn.

    python -m tests.support.mounted_site FRAMEWORK URL

It prints its address.
"""

import sys
from importlib import import_module
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from perdure import App
from perdure.web.app import WebApp
from tests.support.web_client import TrustingGate

PREFIX = "/ops"
HELLO = "hello from the site itself"


def fastapi_site(pages: WebApp) -> Any:
    """Return a site of FastAPI."""
    site = import_module("fastapi").FastAPI(lifespan=pages.lifespan)

    async def hello() -> str:
        return HELLO

    site.get("/hello")(hello)
    site.mount(PREFIX, pages)
    return site


def starlette_site(pages: WebApp) -> Any:
    """Return a site of Starlette."""

    async def hello(_: Any) -> PlainTextResponse:
        return PlainTextResponse(HELLO)

    routes = [Route("/hello", hello), Mount(PREFIX, pages)]
    return Starlette(routes=routes, lifespan=pages.lifespan)


def django_site(pages: WebApp) -> Any:
    """Return a site of Django, which knows no lifespan: Starlette stands in front of it."""
    http, urls = import_module("django.http"), import_module("django.urls")

    def hello(_: Any) -> Any:
        return http.HttpResponse(HELLO)

    settings: Any = import_module("django.conf").settings
    settings.configure(ROOT_URLCONF=(urls.path("hello", hello),), ALLOWED_HOSTS=["*"])
    rest = import_module("django.core.asgi").get_asgi_application()
    return Starlette(routes=[Mount(PREFIX, pages), Mount("/", rest)], lifespan=pages.lifespan)


SITES = {"fastapi": fastapi_site, "starlette": starlette_site, "django": django_site}


class PlainServer(uvicorn.Server):
    """uvicorn, which says where it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        sys.stdout.write(f"http://127.0.0.1:{port}\n")
        sys.stdout.flush()


def main() -> None:
    """Serve it until told to stop."""
    app = App(sys.argv[2])

    @app.job
    async def twice(number: int) -> int:
        return 2 * number

    del twice
    site = SITES[sys.argv[1]](app.asgi(access=TrustingGate()))
    PlainServer(uvicorn.Config(site, port=0, log_level="warning", lifespan="on")).run()


if __name__ == "__main__":
    main()
