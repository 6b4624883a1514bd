"""`perdure serve`: the HTTP API and the dashboard, without a worker."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from perdure.app import App
from perdure.base.errors import DefinitionError, JobError
from perdure.cli.loading import find_app
from perdure.cli.output import Code, code_of, refuse, say
from perdure.cli.target import AppOption, UrlOption, find_caller
from perdure.client import Client
from perdure.web.access.gate import Access
from perdure.web.access.sessions import link_path, local_operator, new_sign_in_link
from perdure.web.access.settings import AccessSettings
from perdure.web.access.site import LOOPBACK as LOOPBACK_NAMES
from perdure.web.server import LOOPBACK, ServerSettings, is_loopback
from perdure.web.server import serve as serve_asgi


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(  # noqa: PLR0913  an option is a parameter
    *,
    host: Annotated[
        str, typer.Option(envvar="PERDURE_HOST", help="The address to listen on.")
    ] = LOOPBACK,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, envvar="PERDURE_PORT", help="The port; 0 takes any free one."
        ),
    ] = 8080,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The certificate with its chain, for TLS.", exists=True)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The key of the certificate.", exists=True)
    ] = None,
    trusted_proxy: Annotated[
        str,
        typer.Option(
            help="Addresses of proxies that encrypt; their X-Forwarded headers are trusted."
        ),
    ] = "",
    root_path: Annotated[
        str, typer.Option(help="The path at which a proxy serves it, such as `/ops`.")
    ] = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Serve the HTTP API and the dashboard until Ctrl-C or SIGTERM.

    With --app, jobs are submitted by their code; with --url alone, by what workers publish.
    """
    try:
        settings = ServerSettings(
            host=host,
            port=port,
            tls_certificate=tls_cert,
            tls_key=tls_key,
            trusted_proxy=trusted_proxy,
            root_path=root_path,
        )
    except DefinitionError as error:
        refuse(str(error), Code.USAGE)
    served = find_app(app, url) if app is not None else Client(find_caller(None, url).url)
    served.shows_locked = True
    try:
        asyncio.run(_serve(served, settings))
    except (JobError, OSError) as error:
        refuse(str(error), code_of(error) if isinstance(error, JobError) else Code.FAILED)


async def _serve(served: App | Client, settings: ServerSettings) -> None:
    """Serve; whoever sees the terminal of a server that only this machine reaches may sign in."""
    is_local = is_loopback(settings.host) and not settings.trusted_proxy
    hosts = LOOPBACK_NAMES if is_local else None
    access = Access(settings=AccessSettings(hosts=hosts))
    async with served:
        link = await new_sign_in_link(served.verbs, local_operator()) if is_local else None
        await serve_asgi(served.asgi(access=access), settings, partial(_tell, link))


def _tell(link: str | None, url: str) -> None:
    say(f"serving {url} (Ctrl-C stops it)")
    if link is None:
        say("make a token to sign in with: perdure tokens create NAME --person ID --role admin")
    else:
        say(f"sign in, once and within 15 minutes: {url}{link_path(link)}")
