"""Queries that people keep."""

from perdure.base.errors import IllegalTransition
from perdure.jobs.saved_view import MOST_VIEWS, SavedView
from perdure.store.statements import Session


def saved_views(session: Session, tenant: str) -> list[SavedView]:
    """Return the saved queries of a tenant by name."""
    return [
        SavedView(name=name, query=query, saved_by=by, saved_at=at)
        for name, query, by, at in session.all("saved_views", tenant=tenant)
    ]


def save_view(session: Session, tenant: str, view: SavedView) -> None:
    """Keep a query under its name, in the place of the one before.

    Raises:
        IllegalTransition: The tenant has too many.
    """
    given = {"tenant": tenant, "name": view.name, "query": view.query, "by": view.saved_by}
    if not session.run("save_view", **given, now=session.now(), most=MOST_VIEWS):
        raise IllegalTransition(f"{MOST_VIEWS} queries are saved: delete one first")


def delete_view(session: Session, tenant: str, name: str) -> bool:
    """Delete a saved query; return whether there was one."""
    return bool(session.run("delete_view", tenant=tenant, name=name))
