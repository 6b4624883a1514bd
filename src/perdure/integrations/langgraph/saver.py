"""A checkpointer for LangGraph, in the store of an app: SQLite or PostgreSQL, with its jobs.

    graph = builder.compile(checkpointer=PerdureSaver(app))

The store keeps the order of changes, so what nodes have written is durable before the checkpoint
that follows from it, or together with it. `aput` serializes the values before it first awaits, so
the graph may change them afterwards.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from perdure.app import App
from perdure.base.extra import extra
from perdure.client import Client
from perdure.engine.working_on import WorkingOn, working_on
from perdure.jobs.graph_thread import (
    GraphCheckpoint,
    GraphContent,
    GraphPut,
    GraphQuery,
    GraphValue,
    GraphWrite,
    LoadedValue,
    Manifest,
    TaskWrites,
    compose,
    new_pieces,
)

with extra("langgraph", "PerdureSaver"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
        PendingWrite,
        get_checkpoint_id,
        get_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

_LEAST: Final = 2048  # bytes: a list that is smaller is stored as a whole
_MOST_THREADS: Final = 200  # whose pieces are remembered
_PAGE: Final = 50  # checkpoints that are read at a time
_LIST: Final = b"L"
_DICT: Final = b"D"
_HOLD: Final = 0.002  # seconds for which writes wait for their checkpoint
_COUNTERS: Final = "counters_since_delta_snapshot"


class _HeldWrites:
    """Writes of a task that wait for the checkpoint that follows from them."""

    __slots__ = ("durable", "writes")

    def __init__(self, writes: TaskWrites) -> None:
        self.writes = writes
        self.durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def settle(self, *, is_durable: bool) -> None:
        """Tell the task whether its writes are stored; it may have been cancelled meanwhile."""
        if not self.durable.done():
            self.durable.set_result(is_durable)


class PerdureSaver(BaseCheckpointSaver[str]):
    """Keeps the threads of LangGraph in the store of an app or a client."""

    def __init__(
        self,
        app: App | Client,
        *,
        tenant: str = "default",
        serde: SerializerProtocol | None = None,
    ) -> None:
        """Open nothing yet: the store is opened on first use, with its tables.

        Args:
            app: Whose store it is.
            tenant: Whose threads these are; those of other tenants are not seen.
            serde: How values become bytes, if not as LangGraph does it.
        """
        super().__init__(serde=serde)
        self.tenant = tenant
        self._app = app
        # The pieces that are in the store, by thread: those are not sent again.
        self._known: OrderedDict[str, set[str]] = OrderedDict()
        self._proven: WorkingOn | None = None
        self._held: dict[tuple[asyncio.AbstractEventLoop, str], list[_HeldWrites]] = {}

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel; two forks of a thread never make the same one."""
        del channel
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}.{secrets.token_hex(8)}"

    # Write

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; inside a step, it counts as progress of the job."""
        packed = self._packed(config, checkpoint, metadata, new_versions)
        return await self._put(*packed, working_on.get())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint: see `aput`."""
        packed = self._packed(config, checkpoint, metadata, new_versions)
        return self._app.sync.wait_for(self._put, *packed, working_on.get())

    async def _put(
        self, put: GraphPut, pieces: dict[str, bytes], work: WorkingOn | None
    ) -> RunnableConfig:
        point, verbs = put.checkpoint, self._app.verbs
        if not await self._put_with_writes(put):  # somebody has pruned the thread
            self._known.pop(point.thread, None)
            again = replace(put, pieces=pieces, relied=())
            await verbs.put_graph(self.tenant, point.thread, (), again)
        if pieces:
            self._known_of(point.thread).update(pieces)
        if work is not None and work.step and work != self._proven:
            await verbs.prove_progress(work.job, work.worker)
            self._proven = work
        return _config(point.thread, point.ns, point.id)

    async def _put_with_writes(self, put: GraphPut) -> bool:
        """Store a checkpoint in one commit with the writes that are held for it.

        Returns:
            False if pieces that it relies on are gone: then only the writes were stored.
        """
        thread = put.checkpoint.thread
        held = self._held.pop((asyncio.get_running_loop(), thread), [])
        is_durable = False
        try:
            wrote = [each.writes for each in held]
            is_stored = await self._app.verbs.put_graph(self.tenant, thread, wrote, put)
            is_durable = True
        finally:  # if it failed, they find out by themselves: to write it again does no harm
            for each in held:
                each.settle(is_durable=is_durable)
        return is_stored

    def _packed(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[GraphPut, dict[str, bytes]]:
        """Return what is to be stored, and all of its pieces."""
        thread, ns, parent = _place(config)
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        told = cast("dict[str, Any]", get_checkpoint_metadata(config, metadata))
        parents: dict[str, Any] = told.get("parents") or {}
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        point = GraphCheckpoint(
            thread=thread,
            ns=ns,
            id=checkpoint["id"],
            parent=parent,
            run=_text(told.get("run_id")),
            root=_text(parents.get("")) if ns else None,
            versions={name: str(version) for name, version in versions.items()},
            deltas=tuple(told.get(_COUNTERS) or ()),
            metadata=self._dump(told),
            data=self._dump(rest),
        )
        stored: dict[str, GraphValue] = {}
        pieces: dict[str, bytes] = {}
        new: dict[str, bytes] = {}
        relied: list[str] = []
        for name in new_versions:
            if name in values and name in versions:
                stored[name], manifest, parts = self._packed_value(values[name])
                if manifest is not None:
                    fresh, known = new_pieces(manifest, parts, self._known_of(thread))
                    pieces, new, relied = pieces | parts, new | fresh, relied + known
        put = GraphPut(checkpoint=point, values=stored, pieces=new, relied=tuple(relied))
        return put, pieces

    def _packed_value(self, value: Any) -> tuple[GraphValue, Manifest | None, dict[str, bytes]]:
        """Return a value as it is stored; a long list or mapping in pieces."""
        kind, parts = _parts(value)
        items = [self._dump(part) for part in parts]
        if sum(map(len, items)) <= _LEAST:
            return GraphValue(self._dump(value)), None, {}
        manifest, pieces = compose(kind, items)
        return GraphValue(pieces=manifest.pack()), manifest, pieces

    def _known_of(self, thread: str) -> set[str]:
        known = self._known.setdefault(thread, set())
        self._known.move_to_end(thread)
        if len(self._known) > _MOST_THREADS:
            self._known.popitem(last=False)
        return known

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written since a checkpoint.

        It is held back for a moment: nearly always the checkpoint that follows from it comes next,
        and both can share a commit.
        """
        await self._put_writes(*self._packed_writes(config, writes, task_id, task_path))

    async def _put_writes(self, thread: str, writes: TaskWrites) -> None:
        key = asyncio.get_running_loop(), thread
        mine = _HeldWrites(writes)
        self._held.setdefault(key, []).append(mine)
        try:
            await asyncio.wait([mine.durable], timeout=_HOLD)
        finally:
            others = self._held.get(key, [])
            if is_here := mine in others:
                others.remove(mine)
                if not others:
                    del self._held[key]
        if is_here or not await mine.durable:
            await self._app.verbs.put_graph(self.tenant, thread, [writes], None)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task has written since a checkpoint."""
        packed = self._packed_writes(config, writes, task_id, task_path)
        self._app.sync.wait_for(self._put_writes, *packed)

    def _packed_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> tuple[str, TaskWrites]:
        thread, ns, id = _place(config)
        packed = [
            GraphWrite(
                task_id, task_path, WRITES_IDX_MAP.get(channel, idx), channel, self._dump(value)
            )
            for idx, (channel, value) in enumerate(writes)
        ]
        return thread, TaskWrites(ns, id or "", packed)

    # Read

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint with its values and writes; the newest, if none is named."""
        found = await self._app.verbs.graph_checkpoint(self.tenant, *_place(config))
        return None if found is None else self._tuple(*found)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint with its values and writes; the newest, if none is named."""
        return self._app.sync.wait_for(self.aget_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the name that LangGraph gives it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first.

        Args:
            config: Of which thread and namespace; None: of all.
            filter: What their metadata must say.
            before: Only those that are older than this one.
            limit: How many at most.
        """
        query, left = _query(config, before), limit
        while left is None or left > 0:
            page = await self._app.verbs.graph_checkpoints(self.tenant, query)
            for point in page:
                if filter and not _matches(self._load(point.metadata), filter):
                    continue
                yield self._tuple(point, await self._app.verbs.graph_content(self.tenant, point))
                left = None if left is None else left - 1
                if left == 0:
                    return
            if len(page) < query.limit:
                return
            last = page[-1]
            query = replace(query, last=(last.id, last.thread, last.ns))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  the name that LangGraph gives it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first: see `alist`."""
        found = self.alist(config, filter=filter, before=before, limit=limit)

        async def following() -> CheckpointTuple | None:
            return await anext(found, None)

        while (each := self._app.sync.wait_for(following)) is not None:
            yield each

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the last stored value of each channel, and what was written to it since then."""
        thread, ns, id = _place(config)
        if id is None and (newest := await self.aget_tuple(config)) is not None:
            id = newest.checkpoint["id"]
        ancestors = await self._app.verbs.graph_history(
            self.tenant, thread, (ns, id or ""), channels
        )
        return {channel: self._history(channel, ancestors) for channel in channels}

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the last stored value of each channel, and what was written to it since then."""
        read = self.aget_delta_channel_history
        return self._app.sync.wait_for(read, config=config, channels=channels)

    def _history(self, channel: str, ancestors: Sequence[GraphContent]) -> DeltaChannelHistory:
        writes: list[PendingWrite] = []
        for each in ancestors:
            mine = [write for write in each.writes if write.channel == channel]
            writes[:0] = [self._write(write) for write in mine]
            if channel in each.values:
                return {"writes": writes, "seed": self._value(each.values[channel])}
        return {"writes": writes}

    def _tuple(self, point: GraphCheckpoint, content: GraphContent) -> CheckpointTuple:
        values = {name: self._value(value) for name, value in content.values.items()}
        place = point.thread, point.ns
        return CheckpointTuple(
            config=_config(*place, point.id),
            checkpoint=cast("Checkpoint", {**self._load(point.data), "channel_values": values}),
            metadata=self._load(point.metadata),
            parent_config=None if point.parent is None else _config(*place, point.parent),
            pending_writes=[self._write(each) for each in content.writes],
        )

    def _value(self, value: LoadedValue) -> Any:
        if value.data is not None:
            return self._load(value.data)
        items = [self._load(item) for item in value.items]
        return items if value.kind == _LIST else dict(items)

    def _write(self, write: GraphWrite) -> PendingWrite:
        return write.task, write.channel, self._load(write.data)

    def _dump(self, value: Any) -> bytes:
        kind, data = self.serde.dumps_typed(value)
        return b"%s\0%s" % (kind.encode(), data)

    def _load(self, packed: bytes) -> Any:
        kind, _, data = packed.partition(b"\0")
        return self.serde.loads_typed((kind.decode(), data))

    # Delete and copy

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        self._known.pop(str(thread_id), None)
        await self._app.verbs.delete_graph_thread(self.tenant, str(thread_id))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        self._app.sync.wait_for(self.adelete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, except those that delta channels of other runs need."""
        runs = [str(id) for id in run_ids]
        for thread in await self._app.verbs.threads_of_runs(self.tenant, runs) if runs else ():
            await self._app.verbs.delete_graph_runs(self.tenant, thread, runs)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs: see `adelete_for_runs`."""
        self._app.sync.wait_for(self.adelete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its whole history."""
        threads = str(source_thread_id), str(target_thread_id)
        await self._app.verbs.copy_graph_thread(self.tenant, *threads)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its whole history."""
        self._app.sync.wait_for(self.acopy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads.

        Args:
            thread_ids: The threads.
            strategy: "keep_latest" keeps the newest checkpoint of each namespace, and those that
                its delta channels need; "delete" keeps nothing.

        Raises:
            ValueError: There is no such strategy.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"{strategy!r} is not a strategy: use 'keep_latest' or 'delete'")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                await self.adelete_thread(thread)
            else:
                await self._app.verbs.prune_graph_thread(self.tenant, thread)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads: see `aprune`."""
        self._app.sync.wait_for(self.aprune, thread_ids, strategy=strategy)


def _place(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return thread, namespace and id of the checkpoint that a config names."""
    given = config.get("configurable", {})
    return str(given["thread_id"]), given.get("checkpoint_ns", ""), get_checkpoint_id(config)


def _config(thread: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def _query(config: RunnableConfig | None, before: RunnableConfig | None) -> GraphQuery:
    older = None if before is None else get_checkpoint_id(before)
    if config is None:
        return GraphQuery(before=older, limit=_PAGE)
    thread, _, id = _place(config)
    ns = config.get("configurable", {}).get("checkpoint_ns")
    return GraphQuery(thread=thread, ns=ns, id=id, before=older, limit=_PAGE)


def _matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(name) == value for name, value in wanted.items())


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _parts(value: Any) -> tuple[bytes, Sequence[Any]]:
    """Return what a value is made of, if it is a list or a mapping."""
    if type(value) is list:
        return _LIST, cast("Sequence[Any]", value)
    if type(value) is dict and all(type(key) is str for key in cast("dict[Any, Any]", value)):
        return _DICT, [list(item) for item in cast("dict[str, Any]", value).items()]
    return b"", ()
