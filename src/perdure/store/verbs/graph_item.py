"""Long-term memory of LangGraph: items by namespace and key.

An item whose time is over is not seen any more. Whoever writes deletes some of those, too.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from perdure.jobs.graph_item import GraphItem
from perdure.store.statements import Row, Session

Place = tuple[str, str]  # of an item: its namespace and its key
_MOST_EXPIRED: Final = 1000  # that one call deletes, so that nobody waits for long


def graph_items(session: Session, tenant: str, places: Sequence[Place]) -> list[GraphItem | None]:
    """Return items by their places."""
    now = session.now()
    found = session.together(
        *(
            ("graph_item", {"tenant": tenant, "namespace": namespace, "key": key, "now": now})
            for namespace, key in places
        )
    )
    return [_item(rows[0]) if rows else None for rows in found]


def newest_graph_items(
    session: Session, tenant: str, within: tuple[str, str], limit: int, offset: int
) -> list[GraphItem]:
    """Return a page of the items of a range of namespaces, those first that changed last."""
    first, behind = within
    rows = session.all(
        "newest_graph_items",
        tenant=tenant, first=first, behind=behind, now=session.now(), limit=limit, offset=offset,
    )  # fmt: skip
    return [_item(row) for row in rows]


def graph_items_after(
    session: Session, tenant: str, within: tuple[str, str], last: Place | None, limit: int
) -> list[GraphItem]:
    """Return the items of a range of namespaces in the order of their places, behind one."""
    first, behind = within
    after = {} if last is None else {"last_namespace": last[0], "last_key": last[1]}
    rows = session.find(
        "graph_items_after",
        set(after),
        tenant=tenant, first=first, behind=behind, now=session.now(), limit=limit, **after,
    )  # fmt: skip
    return [_item(row) for row in rows]


def graph_namespaces(session: Session, tenant: str, within: tuple[str, str]) -> list[str]:
    """Return the namespaces of a range that have items."""
    first, behind = within
    rows = session.all(
        "graph_namespaces", tenant=tenant, first=first, behind=behind, now=session.now()
    )
    return [namespace for (namespace,) in rows]


def put_graph_items(
    session: Session, tenant: str, items: Iterable[GraphItem], deleted: Iterable[Place]
) -> None:
    """Store items, and delete others."""
    now = session.now()
    # In a fixed order: two that write the same items must not wait for each other.
    gone = [{"tenant": tenant, "namespace": each, "key": key} for each, key in sorted(deleted)]
    rows = [
        {
            "tenant": tenant, "namespace": item.namespace, "key": item.key, "data": item.data,
            "vectors": item.vectors, "now": now, "ttl": item.ttl,
            "expires_at": None if item.ttl is None else now + item.ttl * 60,
        }
        for item in sorted(items, key=lambda item: (item.namespace, item.key))
    ]  # fmt: skip
    expired = {"tenant": tenant, "now": now, "limit": _MOST_EXPIRED}
    session.change(
        ("delete_graph_item", gone),
        ("put_graph_item", rows),
        ("delete_expired_graph_items", [expired]),
    )


def refresh_graph_items(session: Session, tenant: str, places: Iterable[Place]) -> None:
    """Let the time to live of items begin anew."""
    now = session.now()
    rows = [
        {"tenant": tenant, "namespace": namespace, "key": key, "now": now}
        for namespace, key in sorted(places)
    ]
    session.many("refresh_graph_item", rows)


def delete_expired_graph_items(session: Session, tenant: str) -> int:
    """Delete some of the items whose time is over; return how many."""
    given = {"tenant": tenant, "now": session.now(), "limit": _MOST_EXPIRED}
    return session.run("delete_expired_graph_items", **given)


def _item(row: Row) -> GraphItem:
    namespace, key, data, vectors, created_at, updated_at, ttl = row
    return GraphItem(
        namespace=namespace, key=key, data=bytes(data),
        vectors=None if vectors is None else bytes(vectors),
        created_at=created_at, updated_at=updated_at, ttl=ttl,
    )  # fmt: skip
