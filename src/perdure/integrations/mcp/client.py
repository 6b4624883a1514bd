"""An MCP server whose tools are called in durable steps.

    tools = DurableMCP(Client("https://mail.example/mcp"), name="mail")

    @app.job
    async def write(text: str) -> None:
        found = await tools.call_tool("search", {"name": "Kim"})
        await tools.call_tool("send", {"to": "kim", "text": text})

The server's hints decide what happens after a crash during a call: a read-only tool is called
again, and an idempotent one with the same key. Any other call is not repeated: a person is
asked whether it was done. Each call carries its key in `_meta`, the same at every attempt.

A connection is made in the step that needs it, never by the code of the job, so a replay connects
to nothing. A process of the worker keeps it open for the next call, and the call after a lost
connection makes another one.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import msgspec
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    ListToolsResult,
    RequestParamsMeta,
    TextContent,
    Tool,
)

from perdure.base.codec import write_plain
from perdure.base.errors import Refused, Unavailable
from perdure.base.retry import Retry
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext, progress_of
from perdure.integrations.durable_calls import (
    MCP_KEY,
    MODEL_RETRY,
    ToolOptions,
    ToolRun,
    as_outage,
    job,
    key_of,
    tool_call,
)
from perdure.jobs.effect import InDoubt
from perdure.jobs.policy import leaves
from perdure.process.api import spawn

IDEMPOTENCY_KEY: Final = MCP_KEY
MOST_PAGES: Final = 1000  # of a list of tools

# The server has not begun with the call.
_NOTHING_HAPPENED: Final = frozenset(
    {INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR}
)
_LOST: Final = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT})
_OUTAGES: Final = Retry(
    attempts=MODEL_RETRY.attempts,
    initial_delay=MODEL_RETRY.initial_delay,
    factor=MODEL_RETRY.factor,
    max_delay=MODEL_RETRY.max_delay,
    jitter=MODEL_RETRY.jitter,
    on=(Unavailable,),
)
_DEFAULT: Final = ToolOptions(raises=(MCPError,))


class DurableMCP:
    """An MCP server whose tools are called in durable steps. Outside of a job it is not durable."""

    def __init__(
        self,
        client: Client | Callable[[], Client],
        *,
        name: str = "mcp",
        tools: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Describe the server; nothing is connected yet.

        Args:
            client: A client that nobody has entered, or a function that makes one. One that is
                made of a transport cannot connect a second time: pass a function then.
            name: The server, in the names of steps: `call:tool:mail.send`.
            tools: Options by tool, for those of which the server says too little, or cannot be
                trusted: `{"send": {"in_doubt": "replay", "risk": "high", "timeout": "1m"}}`.
        """
        self._make = client if callable(client) else lambda: dataclasses.replace(client)
        self._name = name
        self._options = {
            tool: (ToolOptions.of({"perdure": given}, _DEFAULT), given)
            for tool, given in (tools or {}).items()
        }
        self._kept: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = WeakKeyDictionary()

    async def list_tools(self) -> ListToolsResult:
        """Return all tools of the server; in a job, those that it found at its first try."""
        ctx = job("MCP")
        if ctx is None:
            async with self._make() as client:
                return ListToolsResult(tools=await _all_tools(client))

        async def ask() -> Any:
            try:
                connection = await self._connected()
                return _plain(ListToolsResult(tools=list((await connection.tools()).values())))
            except Exception as error:
                raise as_outage(_in_words(error)) from error

        listed = await ctx.call(f"mcp:{self._name}.list_tools", ask, retry=_OUTAGES)
        return ListToolsResult.model_validate(listed)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool, in a step; return its result, or the recorded one.

        Args:
            name: The tool.
            arguments: Its arguments, which rules, gates and people see.
            id: The tool call id that the model gave; it identifies the step.
            meta: More for `_meta` of the request.

        Raises:
            MCPError: The server refused the call. The error of a tool is a result, `is_error`.
            ApprovalRejected: A person was asked because of its risk, and rejected it.
            StepFailed: It failed for good.
        """
        given = dict(arguments or {})
        ctx = job("MCP")
        if ctx is None:
            async with self._make() as client:
                return await client.call_tool(name, given, meta=_meta(meta))
        return await self._call_in(ctx, (name, given), id, dict(meta or {}))

    async def _call_in(
        self, ctx: JobContext, call: tuple[str, dict[str, Any]], id: str | None, meta: Any
    ) -> CallToolResult:
        name, given = call
        options, wanted = self._options.get(name, (_DEFAULT, {}))
        # Only the server knows whether a call may be repeated after a timeout; if not, it is not.
        retry = options.retry or (MODEL_RETRY if wanted.get("effect", True) else _OUTAGES)

        async def body(run: ToolRun) -> Any:
            assert run.step is not None  # it is never inline
            connection = await self._connected()  # until here, nothing can have happened
            tool = (await connection.tools()).get(name)

            async def send(key: str) -> Any:
                return await connection.call(name, run.arguments, {**meta, IDEMPOTENCY_KEY: key})

            doubt = _doubt(tool, wanted)
            if doubt is None:
                return await send(run.key)
            return await _once(run.step, f"{self._name}.{name}", send, doubt)

        made = await tool_call(
            ctx,
            f"{self._name}.{name}",
            body,
            key=None if id is None else key_of(ctx, id),
            arguments=given,
            options=msgspec.structs.replace(options, effect=False, inline=False, retry=retry),
        )
        return _result_of(made)

    async def _connected(self) -> "_Connection":
        """Return the connection of this loop, or a new one if there is none, or it is lost.

        Raises:
            Unavailable: It cannot be made.
        """
        loop = asyncio.get_running_loop()
        found = self._kept.get(loop)
        if found is None or found.is_over:
            found = self._kept[loop] = _Connection(self._make)
            spawn(found.keep)
        await found.ready()
        return found


class _Connection:
    """A connection that a process keeps open: it can only be closed where it was made."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._lost = asyncio.Event()
        self._tools: dict[str, Tool] | None = None

    @property
    def is_over(self) -> bool:
        """Whether another connection is needed."""
        failed = self._client.done() and self._client.exception() is not None
        return failed or self._lost.is_set()

    async def keep(self) -> None:
        """Connect, and keep the connection open until it is lost, or the worker ends."""
        try:
            async with self._make() as client:
                self._client.set_result(client)
                await self._lost.wait()
        except Exception as error:  # noqa: BLE001 - those who wait for it get it
            if not self._client.done():
                self._client.set_exception(error)
        finally:
            self._lost.set()
            if not self._client.done():
                self._client.cancel()

    async def ready(self) -> None:
        """Wait until it is made.

        Raises:
            Unavailable: It cannot be made.
        """
        try:
            await asyncio.shield(self._client)
        except Exception as error:
            raise Unavailable(f"the MCP server cannot be reached: {_in_words(error)}") from error

    async def tools(self) -> dict[str, Tool]:
        """Return the tools by name; they are asked for once for each connection."""
        if self._tools is None:
            with self._watched():
                self._tools = {each.name: each for each in await _all_tools(await self._client)}
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> Any:
        """Call a tool; return the result as plain JSON values."""
        with self._watched():
            client = await self._client
            return _plain(await client.call_tool(name, arguments, meta=_meta(meta)))

    @contextlib.contextmanager
    def _watched(self) -> Generator[None, None, None]:
        """Let the next call connect again, if this one shows that the connection is lost."""
        try:
            yield
        except MCPError as error:
            if error.code not in _LOST:
                raise
            self._lost.set()
            raise ConnectionError(f"the connection to the MCP server is lost: {error}") from error
        except Exception:
            self._lost.set()
            raise


def _doubt(tool: Tool | None, wanted: Mapping[str, Any]) -> InDoubt | None:
    """Return what follows a crash in the middle of a call; None: it is simply called again."""
    hints = None if tool is None else tool.annotations
    if not wanted.get("effect", not (hints is not None and hints.read_only_hint)):
        return None
    if "in_doubt" in wanted:
        return wanted["in_doubt"]
    return "replay" if hints is not None and hints.idempotent_hint else "ask"


async def _once(
    step: StepContext, target: str, send: Callable[[str], Any], in_doubt: InDoubt
) -> Any:
    """Make a call as an effect; return its result, or the recorded one.

    A result that is too large for the record of an effect is stored with the step alone. If a crash
    comes between the two, it is lost, but that the call was made is known.
    """
    whole: list[Any] = []

    async def call(key: str) -> Any:
        try:
            whole[:] = [await send(key)]
        except MCPError as error:
            if error.code in _NOTHING_HAPPENED:
                raise Refused(str(error)) from error
            raise
        size, most = len(write_plain(whole[0])), progress_of(step).limits.record
        return whole[0] if size <= most else _lost_result(size)

    try:
        recorded = await step.effect("MCP call", call, target=target, in_doubt=in_doubt)
    except Refused as refused:
        raise refused.__cause__ or refused from None
    return whole[0] if whole else recorded


def _result_of(made: Any) -> CallToolResult:
    """Return the recorded result of a call; a person may have said in other words what it was."""
    if isinstance(made, dict) and "content" in made:
        return CallToolResult.model_validate(made)
    text = made if isinstance(made, str) else write_plain(made).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)])


def _lost_result(size: int) -> Any:
    text = f"The call was made. Its result, {size:,} bytes, was lost in a crash."
    return _plain(CallToolResult(content=[TextContent(type="text", text=text)]))


async def _all_tools(client: Client) -> list[Tool]:
    """Return the tools of all pages."""
    page = await client.list_tools()
    found = list(page.tools)
    for _ in range(MOST_PAGES):
        if page.next_cursor is None:
            break
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _meta(given: Mapping[str, Any] | None) -> RequestParamsMeta | None:
    return cast("RequestParamsMeta", dict(given)) if given else None


def _plain(result: CallToolResult | ListToolsResult) -> Any:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def _in_words(error: BaseException) -> Exception:
    """Return the first error of a group: a connection that fails raises one."""
    first = next(iter(leaves(error)), error)
    return first if isinstance(first, Exception) else ConnectionError(str(first))
