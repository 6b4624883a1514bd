"""Open a store by its URL. The module of a database is imported only when it is used."""

from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from perdure.base.clock import Clock
from perdure.base.encryption import Encryption, default_encryption
from perdure.base.errors import StoreError
from perdure.base.secret import without_secrets
from perdure.store.migrations import Migration
from perdure.store.store import Store

_FORMS = "sqlite:///file.db, sqlite:////folder/file.db or postgresql://user@host/database"
_SQLITE_OPTIONS = ("force_network", "kill_stopped_writer")


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    encryption: Encryption | None = None,
    shows_locked: bool = False,
) -> Store:
    """Return the store for a URL; `await store.open()` connects it.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.
            Options follow after `?`: `force_network=1`, `kill_stopped_writer=1` (SQLite);
            `schema=name`, `pgbouncer=1` (PostgreSQL).
        clock: Replaces the machine's clock (SQLite only): for tests.
        encryption: The keys that encrypt payloads; None: those of `PERDURE_ENCRYPTION_KEYS`.
        shows_locked: Show a text in the place of a payload for which there is no key: for programs
            that show jobs to people.

    Raises:
        StoreError: The URL is not one of these forms, or a key is not one.
    """
    check_url(url)
    keys = default_encryption() if encryption is None else encryption
    more = {"keys": keys, "shows_locked": shows_locked}
    if url.startswith("sqlite:"):
        return _sqlite(url, clock=clock, **more)
    return _postgres(url, **more)


def pending_migrations(url: str) -> list[Migration]:
    """Return the migrations that opening a store would apply; nothing is created or changed.

    Raises:
        StoreError: The URL is none, the database does not answer, or its schema is not ours.
    """
    check_url(url)
    if url.startswith("sqlite:"):
        schema = import_module("perdure.store.sqlite.schema")
        return schema.pending(Path(_sqlite_file(url)[0]))
    _postgres(url)  # whether there is a driver
    target = import_module("perdure.store.postgres.connection").Target(url)
    with target.connect() as pg:
        return import_module("perdure.store.postgres.schema").pending(pg, target.schema)


def drop_schema(url: str) -> None:
    """Delete the schema of a PostgreSQL store with everything in it."""
    target = import_module("perdure.store.postgres.connection").Target(url)
    with target.connect() as pg:
        import_module("perdure.store.postgres.schema").drop(pg, target.schema)


def limit_to_tenant(url: str, role: str) -> None:
    """Let a role of PostgreSQL read the rows of one tenant: see `postgres.row_security`.

    Raises:
        StoreError: It is another database, or the role cannot be limited.
    """
    check_url(url)
    if url.startswith("sqlite:"):
        raise StoreError("only PostgreSQL has row-level security")
    _postgres(url)  # whether there is a driver
    import_module("perdure.store.postgres.row_security").secure_rows(url, role)


def check_url(url: str) -> None:
    """Check the form of a URL, without connecting to anything.

    Raises:
        StoreError: The URL is not one of those that `open_store` takes.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        _sqlite_file(url)
    elif scheme not in ("postgresql", "postgres") or "://" not in url:
        # What is not a URL may be a connection string, password and all, so it is not shown.
        wrong = f"unsupported store {scheme!r}" if scheme.isalnum() else "this is not a store URL"
        raise StoreError(f"{wrong}: write {_FORMS}")


def _postgres(url: str, **options: Any) -> Store:
    try:
        module = import_module("perdure.store.postgres.store")
    except ImportError as error:
        raise StoreError("PostgreSQL needs its driver: pip install 'perdure[postgres]'") from error
    return module.PostgresStore(url, **options)


def _sqlite(url: str, **options: Any) -> Store:
    path, flags = _sqlite_file(url)
    module = import_module("perdure.store.sqlite.store")
    return module.SqliteStore(path, **flags, **options)


def _sqlite_file(url: str) -> tuple[str, dict[str, bool]]:
    """Return the path and the options of a SQLite URL."""
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path or not url.startswith("sqlite:///"):
        raise StoreError(
            f"{without_secrets(url)!r} does not name a file: "
            "write sqlite:///file.db, or sqlite:////folder/file.db"
        )
    options = dict(parse_qsl(parts.query))
    flags = {name: options.pop(name, "0") == "1" for name in _SQLITE_OPTIONS}
    if options:
        raise StoreError(f"{path!r} has unknown options: {', '.join(options)}")
    return path, flags
