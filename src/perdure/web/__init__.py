"""The HTTP API, the page, and everything else that `app.asgi()` serves: one ASGI app.

Its parts are imported on first use: a program without an API does not load a web framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.web.app import WebApp as WebApp
    from perdure.web.app import web_app as web_app

_HOME = {"WebApp": "perdure.web.app", "web_app": "perdure.web.app"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
