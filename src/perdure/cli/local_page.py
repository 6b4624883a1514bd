"""The dashboard on one machine, as `perdure dev` and `perdure demo` serve it.

Their link works once, and whoever opens it may do everything. Only this machine reaches it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.client import Client
from perdure.web.access.gate import Access
from perdure.web.access.sessions import link_path, local_operator, new_sign_in_link
from perdure.web.access.settings import AccessSettings
from perdure.web.access.site import LOOPBACK
from perdure.web.server import ServerSettings, serve

if TYPE_CHECKING:
    from perdure.app import App  # which `perdure dev` does not load: its worker does


async def new_link(served: "App | Client") -> str:
    """Return the path of a link that signs in once."""
    return link_path(await new_sign_in_link(served.verbs, local_operator()))


async def serve_locally(
    served: "App | Client", port: int, listening: Callable[[str], Any], *, signals: bool = False
) -> None:
    """Serve the API and the dashboard on this machine until it is cancelled.

    Args:
        served: The app or client.
        port: 0 takes any that is free.
        listening: Called with its URL when it listens.
        signals: Whether SIGTERM and Ctrl-C stop it too.

    Raises:
        OSError: The port cannot be had.
    """
    access = Access(settings=AccessSettings(hosts=LOOPBACK))
    settings = ServerSettings(port=port, signals=signals)
    await serve(served.asgi(access=access), settings, listening)
