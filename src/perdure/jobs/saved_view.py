"""Queries that people keep under a name, for all of their tenant; pure."""

from typing import Final

from msgspec import Struct

MOST_VIEWS: Final = 200  # of one tenant


class SavedView(Struct, frozen=True, kw_only=True):
    """A query text under a name."""

    name: str
    query: str
    saved_by: str = ""
    saved_at: float = 0.0  # set by the store
