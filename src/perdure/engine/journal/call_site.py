"""Where the code that runs now comes from: whose it is, at which line, and under which framework.

The stack is read only when something is about to be refused. In a task or a thread it does not
reach the code of the job; then the line is that at which the job itself waits.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Final

from msgspec import Struct

# What a stack is read up to: the engine and the loop, below which it says nothing about the code.
_DRIVERS: Final = frozenset(
    {"perdure.engine.run.executor", "perdure.process.process", "perdure.process.scheduler"}
    | {"asyncio.events"}
)

# What watches the code, and so stands between its frames.
_WATCHERS: Final = frozenset(
    {"perdure.engine.journal.guard", "perdure.engine.journal.entry_points"}
)

# What a connection or a subprocess may be begun by at any time: none of it is work of the job.
_HARMLESS: Final = (
    "importlib._bootstrap",  # whatever a library does when it is imported
    "logging",
    *("opentelemetry.sdk", "opentelemetry.exporter", "sentry_sdk.transport", "agents.tracing"),
    *("langsmith.client", "langsmith._internal", "logfire._internal.exporters"),
    *("platform", "uuid", "ctypes.util", "distro"),  # they ask other programs about the machine
)

# Libraries that only transport what others ask for; like the standard library, they do not decide.
_TRANSPORTS: Final = frozenset(
    {"httpx", "httpcore", "httpx2", "httpcore2", "anyio", "h11", "h2", "truststore"}
    | {"requests", "urllib3", "aiohttp", "aiohappyeyeballs", "websockets", "grpc", "aiosmtplib"}
    | {"psycopg", "psycopg_binary", "psycopg_pool", "asyncpg", "redis"}
)

# Frameworks of agents, and what makes each of them durable. An agent's tools may use MCP, so that
# comes last.
_FRAMEWORKS: Final = {
    "pydantic_ai": ("pydantic-ai", "give its agent `capabilities=[PerdureDurability()]`"),
    "agents": (
        "the OpenAI Agents SDK",
        "call `install()` of perdure.integrations.openai_agents once in the program",
    ),
    "google.adk": ("Google ADK", "give its runner `plugins=[PerdurePlugin()]`"),
    "agent_framework": (
        "Microsoft Agent Framework",
        "give its agent `middleware=durable_middleware()`",
    ),
    "langgraph": (
        "LangGraph",
        "run it with `run_graph`, and give an agent `middleware=[PerdureMiddleware()]`",
    ),
    "langchain": ("LangChain", "give its agent `middleware=[PerdureMiddleware()]`"),
    "fastmcp": ("an MCP client", "wrap it: `DurableMCP(Client(…))`"),
    "mcp": ("an MCP client", "wrap it: `DurableMCP(Client(…))`"),
}


class CallSite(Struct, frozen=True):
    """A line of the user's code, and the framework that runs there: its name, and what to write."""

    where: str
    line: tuple[str, int]
    framework: tuple[str, str] | None = None


class _Place(Struct, frozen=True):
    """A place in running code."""

    module: str
    code: CodeType
    line: int

    @classmethod
    def of(cls, frame: FrameType) -> "_Place":
        return cls(str(frame.f_globals.get("__name__", "")), frame.f_code, frame.f_lineno)


def stack(frame: FrameType | None) -> "list[_Place]":
    """Return the places from a frame outwards, up to what drives the code."""
    found: list[_Place] = []
    while frame is not None:
        place = _Place.of(frame)
        if place.module in _DRIVERS:
            break
        if place.module not in _WATCHERS:
            found.append(place)
        frame = frame.f_back
    return found


def is_own_work(places: "Sequence[_Place]") -> bool:
    """Whether this is work of Perdure itself, or of what may always do it."""
    if any(_is_within(each.module, _HARMLESS) for each in places):
        return True
    deciding = (each.module for each in places if not _is_transport(each.module))
    module = next(deciding, "")
    return _is_within(module, ("perdure",)) and not _is_within(module, ("perdure.integrations",))


def code_places(coro: Any, thread: int) -> "list[_Place]":
    """Return the places at which the code of a job is, from the innermost outwards.

    Args:
        coro: The coroutine of the process that runs it.
        thread: The thread of its loop.
    """
    if coro.cr_running and thread != get_ident():  # it goes on beside the thread that asks
        return stack(sys._current_frames().get(thread))  # noqa: SLF001 - documented  # pyright: ignore[reportPrivateUsage]
    return list(_awaiting(coro))[::-1]


def call_site(places: "Sequence[_Place]", function: Callable[..., Any]) -> CallSite:
    """Return where in the user's code this is.

    Args:
        places: The stack of what is about to happen, and where the code of the job is meanwhile.
        function: The function of the job.
    """
    package = str(function.__module__).partition(".")[0]
    users = (each for each in places if _is_users(each, package))
    place = next(users, None)
    code = function.__code__ if place is None else place.code
    line = code.co_firstlineno if place is None else place.line
    where = f"{_spell(code.co_filename)}:{line} in {code.co_name}"
    return CallSite(where, (code.co_filename, line), _framework(places, package))


def _awaiting(coro: Any) -> "Iterator[_Place]":
    """Yield the places at which a coroutine waits, from the outermost inwards."""
    while coro is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(coro, f"{kind}_frame", None)
            if frame is not None:
                yield _Place.of(frame)
        waits = (getattr(coro, name, None) for name in ("cr_await", "gi_yieldfrom", "ag_await"))
        coro = next((each for each in waits if each is not None), None)


def _framework(places: "Sequence[_Place]", package: str) -> tuple[str, str] | None:
    modules = [each.module for each in places if not _is_users(each, package)]
    for prefix, advice in _FRAMEWORKS.items():
        if any(_is_within(module, (prefix,)) for module in modules):
            return advice
    return None


def _is_users(place: _Place, package: str) -> bool:
    """Whether a place is in the user's code: that of no library, or in the package of the job."""
    top = place.module.partition(".")[0]
    if top == "perdure" or top in sys.stdlib_module_names:
        return False
    name = place.code.co_filename
    installed = f"{os.sep}site-packages{os.sep}" in name or f"{os.sep}dist-packages{os.sep}" in name
    return top == package or not (installed or name.startswith("<frozen"))


def _is_transport(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _TRANSPORTS or top in sys.stdlib_module_names


def _is_within(module: str, prefixes: Sequence[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in prefixes)


def _spell(path: str) -> str:
    """Return the path of a file as a person would name it."""
    return path.removeprefix(f"{Path.cwd()}{os.sep}")
