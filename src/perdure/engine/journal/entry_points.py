"""What leaves the program, as it is about to happen: connections, requests and subprocesses.

Python itself reports most of it (`sys.addaudithook`): every new connection of a library that is
written in Python, every request of `http.client`, and with it of requests, urllib3 and boto3, and
every subprocess. It does not report what is sent over a connection that was opened before, nor
anything that a library does in C. So the functions through which all such calls of well-known
clients go are wrapped as well, when their module has been imported.

None of this can be removed again. It costs a look-up by name, and does nothing where no guard
watches: see `guard`.
"""

import functools
import importlib.abc
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

Describe: TypeAlias = Callable[[Any], str | None]  # what the arguments ask for; None: no matter
Meet: TypeAlias = Callable[[Describe, Any], None]  # it raises what it refuses

_DNS: Final = 53


def _address(address: Any) -> str:
    if isinstance(address, tuple):
        host, port = cast("tuple[Any, ...]", address)[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return address.decode(errors="replace") if isinstance(address, bytes) else str(address)


def _connection(args: Any) -> str:
    return f"a connection to {_address(args[1])}"


def _datagram(args: Any) -> str | None:
    address: Any = args[1]
    if isinstance(address, tuple) and address[1:2] == (_DNS,):
        return None
    return f"a datagram to {_address(address)}"


def _http(args: Any) -> str:
    return f"an HTTP request to {args[0].host}:{args[0].port}"


def _program(args: Any) -> str:
    command: Any = args[0]
    if isinstance(command, list | tuple):
        command = next(iter(cast("Sequence[Any]", command)), "")
    text = os.fsdecode(command)
    return f"the subprocess {text.split()[0] if text.strip() else text!r}"


def _popen(args: Any) -> str:
    executable, argv = args[:2]
    return _program((executable or argv,))


# By the name of the audit event.
EVENTS: Final[Mapping[str, Describe]] = {
    "socket.connect": _connection,
    "socket.sendto": _datagram,
    "http.client.connect": lambda args: f"an HTTP connection to {args[1]}:{args[2]}",
    "http.client.send": _http,
    "smtplib.send": lambda _: "a mail command over SMTP",
    "subprocess.Popen": _popen,
    "os.system": _program,
    "os.exec": _program,
    "os.posix_spawn": _program,
    "os.fork": lambda _: "a fork of this process",
    "os.forkpty": lambda _: "a fork of this process",
}


def _request(args: Any) -> str:
    request = args[1]
    return f"an HTTP request, {request.method} to {_host(request.url)}"


def _aiohttp(args: Any) -> str:
    return f"an HTTP request, {args[1]} to {_host(args[2])}"


def _host(url: Any) -> str:
    # The rest of a URL may hold secrets.
    found = urlsplit(str(url))
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}"


def _grpc(args: Any) -> str:
    method = getattr(args[0], "_method", b"")
    return f"the gRPC call {method.decode() if isinstance(method, bytes) else method}"


def _postgres(_: Any) -> str:
    return "a call to PostgreSQL"


_GRPC_KINDS: Final = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")

# By module: methods of its classes, or functions, and what a call of them asks for.
ENTRY_POINTS: Final[Mapping[str, Mapping[str, Describe]]] = {
    "httpx": {"Client.send": _request, "AsyncClient.send": _request},
    "httpx2": {"Client.send": _request, "AsyncClient.send": _request},
    "aiohttp.client": {
        "ClientSession._request": _aiohttp,
        "ClientSession._ws_connect": lambda _: "a WebSocket",
    },
    "psycopg": {
        "connect": _postgres
    },  # a bound method, which is not replaced with that of its class
    "psycopg.connection": {"Connection.connect": _postgres, "Connection.wait": _postgres},
    "psycopg.connection_async": {
        "AsyncConnection.connect": _postgres,
        "AsyncConnection.wait": _postgres,
    },
    "asyncpg.connection": {"Connection.execute": _postgres, "Connection._do_execute": _postgres},
    "redis.connection": {
        "AbstractConnection.send_packed_command": lambda _: "a command to Redis",
    },
    "redis.asyncio.connection": {
        "AbstractConnection.send_packed_command": lambda _: "a command to Redis",
    },
    "grpc._channel": {
        f"_{kind}MultiCallable.{method}": _grpc
        for kind in (*_GRPC_KINDS, "SingleThreadedUnaryStream")
        for method in ("__call__", "with_call", "future")
    },
    "grpc.aio._channel": {f"{kind}MultiCallable.__call__": _grpc for kind in _GRPC_KINDS},
    "multiprocessing.process": {
        "BaseProcess.start": lambda args: f"the process {args[0].name} of multiprocessing",
    },
}


def watch(meet: Meet) -> None:
    """Call a function with everything that is about to leave the program; it may raise.

    Args:
        meet: Gets what describes the call, and its arguments: a description is seldom needed.
    """
    sys.addaudithook(functools.partial(_hook, meet, EVENTS))
    sys.meta_path.insert(0, _WrapsWhenImported(meet))
    for name in ENTRY_POINTS:
        if (module := sys.modules.get(name)) is not None:
            _wrap_all(module, meet)


def _hook(meet: Meet, events: Mapping[str, Describe], event: str, args: Any) -> None:
    if event in events:
        try:
            meet(events[event], args)
        except BaseException:
            if event == "socket.connect":  # most libraries close it only after an error of the OS
                args[0].close()
            raise


class _WrapsWhenImported(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and wraps its entry points as soon as it has run."""

    def __init__(self, meet: Meet) -> None:
        self._meet = meet

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has entry points, and None for any other."""
        if fullname not in ENTRY_POINTS:
            return None
        others = (each for each in sys.meta_path if each is not self)
        found = (each.find_spec(fullname, path, target) for each in others)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            self._wrap_after(spec.loader)
        return spec

    def _wrap_after(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _wrap_all(module, self._meet)

        with suppress(AttributeError):  # a loader of somebody else, which cannot be changed
            loader.exec_module = exec_module


def _wrap_all(module: ModuleType, meet: Meet) -> None:
    for path, describe in ENTRY_POINTS[module.__name__].items():
        name, _, method = path.rpartition(".")
        owner: Any = getattr(module, name, None) if name else module
        found: Any = None if owner is None else cast("dict[str, Any]", vars(owner)).get(method)
        if found is None:  # other versions of a library may lack it
            continue
        is_of_class = isinstance(found, classmethod)
        wrapped = _wrapped(cast("Any", found).__func__ if is_of_class else found, describe, meet)
        setattr(owner, method, classmethod(wrapped) if is_of_class else wrapped)


def _wrapped(fn: Callable[..., Any], describe: Describe, meet: Meet) -> Callable[..., Any]:
    """Return a function of the same kind that meets the guard first."""
    described = functools.partial(_by_position, fn, describe)

    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            meet(described, (args, kwargs))
            return await fn(*args, **kwargs)

        return awaited

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        meet(described, (args, kwargs))
        return fn(*args, **kwargs)

    return called


def _by_position(fn: Callable[..., Any], describe: Describe, given: Any) -> str | None:
    """Describe a call with its arguments in the order of the function's parameters."""
    args, kwargs = given
    return describe(tuple(inspect.signature(fn).bind(*args, **kwargs).arguments.values()))
