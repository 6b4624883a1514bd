"""Long-term memory for LangGraph, in the store of an app: SQLite or PostgreSQL, with its jobs.

    graph = builder.compile(store=PerdureStore(app))

As in LangGraph's own stores, the reads of a batch see what was there before the batch, and its
writes are one transaction.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final, cast

from perdure.app import App
from perdure.base.extra import extra
from perdure.client import Client
from perdure.jobs.graph_item import (
    GraphItem,
    Labels,
    ends_match,
    labels_of,
    matches,
    namespace_text,
    pack_vectors,
    range_below,
    similarity,
    unit,
)

with extra("langgraph", "PerdureStore"):
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        IndexConfig,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        ensure_embeddings,
        get_text_at_path,
        tokenize_path,
    )

_PAGE: Final = 200  # items that are read at a time


class PerdureStore(BaseStore):
    """Keeps the long-term memory of LangGraph in the store of an app or a client."""

    supports_ttl = True

    def __init__(
        self,
        app: App | Client,
        *,
        tenant: str = "default",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        """Open nothing yet: the store is opened on first use, with its tables.

        Args:
            app: Whose store it is.
            tenant: Whose items these are; those of other tenants are not seen.
            index: How texts become vectors, for searches by meaning: `embed`, `dims`, `fields`.
            ttl: `default_ttl` in minutes, and whether reading lets it begin anew
                (`refresh_on_read`). Items whose time is over are never returned.
        """
        self.tenant = tenant
        self.ttl_config = ttl
        self.index_config = index
        self.embeddings = None if index is None else ensure_embeddings(index.get("embed"))
        self._app = app

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations: see `abatch`."""
        return self._app.sync.wait_for(self.abatch, list(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do several operations, first those that read; return what each of them returns."""
        asked = list(ops)
        results: list[Result] = [None] * len(asked)
        gets = [(place, op) for place, op in enumerate(asked) if isinstance(op, GetOp)]
        for (place, _), item in zip(gets, await self._got([op for _, op in gets]), strict=True):
            results[place] = item
        for place, op in enumerate(asked):
            if isinstance(op, SearchOp):
                results[place] = await self._found(op)
            elif isinstance(op, ListNamespacesOp):
                results[place] = await self._namespaces(op)
            elif not isinstance(op, GetOp | PutOp):  # pyright: ignore[reportUnnecessaryIsInstance]  of a newer LangGraph
                raise TypeError(f"PerdureStore does not support the operation {type(op).__name__}")
        puts = {(op.namespace, op.key): op for op in asked if isinstance(op, PutOp)}
        if puts:
            await self._put(list(puts.values()))
        return results

    async def asweep_ttl(self) -> int:
        """Delete all items whose time is over, which writing does only bit by bit.

        Returns:
            How many were deleted.
        """
        total = 0
        while deleted := await self._app.verbs.delete_expired_graph_items(self.tenant):
            total += deleted
        return total

    def sweep_ttl(self) -> int:
        """Delete all items whose time is over: see `asweep_ttl`."""
        return self._app.sync.wait_for(self.asweep_ttl)

    # Read

    async def _got(self, ops: Sequence[GetOp]) -> list[Item | None]:
        if not ops:
            return []
        places = [(namespace_text(op.namespace), op.key) for op in ops]
        found = await self._app.verbs.graph_items(self.tenant, places)
        await self._refresh(
            [each for op, each in zip(ops, found, strict=True) if op.refresh_ttl and each]
        )
        return [each and Item(**_told(each)) for each in found]

    async def _found(self, op: SearchOp) -> list[SearchItem]:
        query = None
        if op.query and self.embeddings is not None:
            query = unit(await self.embeddings.aembed_query(op.query))
        if query is None and not op.filter:
            within = range_below(op.namespace_prefix)
            items = await self._app.verbs.newest_graph_items(
                self.tenant, within, op.limit, op.offset
            )
            ranked: list[tuple[float | None, GraphItem]] = [(None, each) for each in items]
        else:
            ranked = _ranked(await self._matching(op), query)[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            await self._refresh([each for _, each in ranked])
        return [SearchItem(**_told(each), score=score) for score, each in ranked]

    async def _matching(self, op: SearchOp) -> list[GraphItem]:
        """Return all items that a filter lets pass."""
        within = range_below(op.namespace_prefix)
        found, last = list[GraphItem](), None
        while True:
            page = await self._app.verbs.graph_items_after(self.tenant, within, last, _PAGE)
            found += [
                each for each in page if not op.filter or matches(json.loads(each.data), op.filter)
            ]
            if len(page) < _PAGE:
                return found
            last = page[-1].namespace, page[-1].key

    async def _refresh(self, items: Iterable[GraphItem]) -> None:
        places = {(each.namespace, each.key) for each in items if each.ttl is not None}
        if places:
            await self._app.verbs.refresh_graph_items(self.tenant, places)

    async def _namespaces(self, op: ListNamespacesOp) -> list[Labels]:
        conditions = op.match_conditions or ()
        prefix = next((each.path for each in conditions if each.match_type == "prefix"), ())
        within = range_below(list(takewhile(lambda label: label != "*", prefix)))
        texts = await self._app.verbs.graph_namespaces(self.tenant, within)
        found = {
            labels[: op.max_depth]
            for labels in map(labels_of, texts)
            if all(_meets(labels, each) for each in conditions)
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    # Write

    async def _put(self, ops: Sequence[PutOp]) -> None:
        kept = [op for op in ops if op.value is not None]
        vectors = await self._vectors(kept)
        items = [
            GraphItem(
                namespace=namespace_text(op.namespace),
                key=op.key,
                data=_json(op),
                vectors=pack_vectors(each),
                ttl=None if op.ttl is None else float(op.ttl),
            )
            for op, each in zip(kept, vectors, strict=True)
        ]
        deleted = [(namespace_text(op.namespace), op.key) for op in ops if op.value is None]
        await self._app.verbs.put_graph_items(self.tenant, items, deleted)

    async def _vectors(self, ops: Sequence[PutOp]) -> list[list[list[float]]]:
        """Return the vectors of what each item says."""
        if self.embeddings is None:
            return [[] for _ in ops]
        texts = [self._texts(op) for op in ops]
        every = list(dict.fromkeys(text for each in texts for text in each))
        embedded = await self.embeddings.aembed_documents(every) if every else []
        by_text = dict(zip(every, embedded, strict=True))
        return [[by_text[text] for text in each] for each in texts]

    def _texts(self, op: PutOp) -> list[str]:
        """Return the texts of an item that are found by their meaning."""
        if op.index is False or self.index_config is None:
            return []
        fields = op.index or self.index_config.get("fields") or ["$"]
        return [
            text
            for field in fields
            for text in get_text_at_path(op.value, field if field == "$" else tokenize_path(field))
        ]


def _json(op: PutOp) -> bytes:
    try:
        return json.dumps(dict(op.value or {}), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the value of {op.key!r} in {op.namespace!r} cannot be stored as JSON: {error}"
        ) from error


def _told(item: GraphItem) -> dict[str, Any]:
    return {
        "namespace": labels_of(item.namespace),
        "key": item.key,
        "value": cast("dict[str, Any]", json.loads(item.data)),
        "created_at": datetime.fromtimestamp(item.created_at, UTC),
        "updated_at": datetime.fromtimestamp(item.updated_at, UTC),
    }


def _ranked(
    items: Sequence[GraphItem], query: Sequence[float] | None
) -> list[tuple[float | None, GraphItem]]:
    """Return items with their scores: the nearest first, then those that changed last."""
    scored = [(None if query is None else similarity(each.vectors, query), each) for each in items]
    return sorted(
        scored,
        key=lambda each: (
            each[0] is None, -(each[0] or 0.0), -each[1].updated_at, each[1].namespace, each[1].key
        ),
    )  # fmt: skip


def _meets(labels: Labels, condition: MatchCondition) -> bool:
    if condition.match_type not in ("prefix", "suffix"):
        raise ValueError(f"there is no match type {condition.match_type!r}: use prefix or suffix")
    return ends_match(labels, condition.path, suffix=condition.match_type == "suffix")
