"""From a URL to a store."""

from importlib import import_module
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.base.clock import Clock
from perdure.base.errors import StoreError
from perdure.base.secret import without_secrets
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store

_FORMS = "sqlite:///file.db, sqlite:////folder/file.db or postgresql://user@host/database"


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Give the store that a URL names; `await store.open()` connects it.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.
            Options follow after `?`: `force_network=1` (SQLite);
            `schema=name`, `pgbouncer=1` (PostgreSQL).
        clock: Tells the time instead of the machine (SQLite only): for tests.

    Raises:
        StoreError: The URL is of no known form.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        return _sqlite(url, rest, clock)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    # What is no URL may be a connection string, password and all.
    wrong = f"unsupported store {scheme!r}" if scheme.isalnum() else "this is not a store URL"
    raise StoreError(f"{wrong}: write {_FORMS}")


def _postgres(url: str) -> Store:
    try:
        # Only here: the driver is there only for those who asked for it.
        module = import_module("perdure.store.postgres.store")
    except ImportError as error:
        raise StoreError("PostgreSQL needs its driver: pip install 'perdure[postgres]'") from error
    return module.PostgresStore(url)


def _sqlite(url: str, rest: str, clock: Clock | None) -> SqliteStore:
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or not rest.startswith("///"):
        raise StoreError(
            f"{without_secrets(url)!r} names no file: write sqlite:///file.db, or sqlite:////folder/file.db"
        )
    options = dict(parse_qsl(parts.query))
    force = options.pop("force_network", "0") == "1"
    if options:
        raise StoreError(f"{path!r} has unknown options: {', '.join(options)}")
    return SqliteStore(path, clock=clock, force_network=force)
