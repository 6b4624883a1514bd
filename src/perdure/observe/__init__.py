"""Metrics, traces and structured logs: listeners of telemetry events; loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from perdure.observe.endpoints import Endpoints
    from perdure.observe.logs import JsonFormatter, WorkFilter, configure
    from perdure.observe.otel import tracing
    from perdure.observe.prometheus import Metrics
    from perdure.observe.server import serving

# Each of the modules needs a library that no other part does.
_MODULE_OF: Final = {
    "Endpoints": "perdure.observe.endpoints",
    "JsonFormatter": "perdure.observe.logs",
    "Metrics": "perdure.observe.prometheus",
    "WorkFilter": "perdure.observe.logs",
    "configure": "perdure.observe.logs",
    "serving": "perdure.observe.server",
    "tracing": "perdure.observe.otel",
}

__all__ = ["Endpoints", "JsonFormatter", "Metrics", "WorkFilter", "configure", "serving", "tracing"]


def __getattr__(name: str) -> object:
    """Load a name on first use, and keep it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'perdure.observe' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value
