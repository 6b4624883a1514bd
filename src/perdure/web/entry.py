"""Imports this package when it is first used: a program without an API loads no web framework."""

from importlib import import_module
from typing import TYPE_CHECKING

from perdure.engine.caller import Caller

if TYPE_CHECKING:
    from perdure.web.access.tenant import Preparer
    from perdure.web.app import AsgiOptions, WebApp


def web_app(caller: Caller, prepare: "Preparer", options: "AsgiOptions") -> "WebApp":
    """Return the ASGI app of an app or a client: see `App.asgi`."""
    return import_module("perdure.web.app").web_app(caller, prepare, options)
