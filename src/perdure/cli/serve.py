"""`perdure serve`: the HTTP API and the page, without a worker."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from perdure.base.errors import DefinitionError, JobError
from perdure.cli.loading import find_app
from perdure.cli.output import Code, code_of, refuse, say
from perdure.cli.target import AppOption, UrlOption, find_caller
from perdure.client import Client
from perdure.web.server import LOOPBACK, ServerSettings
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
            min=0, max=65535, envvar="PERDURE_PORT", help="The port; 0 takes any that is free."
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
        typer.Option(help="Addresses of proxies that encrypt, and whose headers are believed."),
    ] = "",
    root_path: Annotated[str, typer.Option(help="The prefix at which a proxy serves it.")] = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Serve the HTTP API and the page until Ctrl-C or SIGTERM.

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
    try:
        asyncio.run(serve_asgi(served.asgi(), settings, _tell))
    except (JobError, OSError) as error:
        refuse(str(error), code_of(error) if isinstance(error, JobError) else Code.FAILED)


def _tell(url: str) -> None:
    say(f"serving {url} (Ctrl-C stops it)")
