"""The time of a PostgreSQL store in a test: the server's clock, plus what was skipped.

Every statement of the store reads the time by `clock_timestamp()` or `statement_timestamp()`. A
session finds functions by its search path, and the server's own come first only if the path does
not name them. So the sessions of a test name them last, after a schema with two functions of the
same names, which add the skipped seconds. The statements are those of production, and all sessions
of the test see the same time, those of other processes too.
"""

import secrets
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from perdure.base.errors import StoreError
from perdure.store.postgres.connection import Target

_CLOCK = """
CREATE SCHEMA {clock};
CREATE TABLE {clock}.skipped (seconds float8 NOT NULL);
INSERT INTO {clock}.skipped VALUES (0);
CREATE FUNCTION {clock}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
$$SELECT pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => seconds)
  FROM {clock}.skipped$$;
CREATE FUNCTION {clock}.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
$$SELECT pg_catalog.statement_timestamp() + pg_catalog.make_interval(secs => seconds)
  FROM {clock}.skipped$$;
"""


class PostgresTime:
    """A new schema for a test, on a server whose time can be skipped.

    Attributes:
        url: The URL of the store in this schema.

    Raises:
        StoreError: The URL names a schema that is not empty, or uses a pooler.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if options.get("pgbouncer", "0") == "1":
            raise StoreError("time cannot be skipped behind a pooler: test on the server itself")
        self._schema = options.setdefault("schema", f"perdure_test_{secrets.token_hex(8)}")
        self._clock = f"{self._schema[:50]}_clock"
        path = f"-c search_path={self._schema},{self._clock},pg_catalog"
        options["options"] = f"{options.get('options', '')} {path}".strip()
        self.url = urlunsplit(parts._replace(query=urlencode(options, quote_via=quote)))
        self._connection = Target(self.url).connect()
        try:
            self._make_clock()
        except BaseException:
            self._connection.close()
            raise

    def _make_clock(self) -> None:
        found = self._connection.execute(
            b"SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (self._schema,)
        ).fetchone()
        if found:
            raise StoreError(
                f"the schema {self._schema!r} exists already: a test gets a new one, which is "
                "deleted at its end. Leave `schema=` out of the URL"
            )
        names = {"clock": sql.Identifier(self._clock)}
        self._connection.execute(sql.SQL(_CLOCK).format(**names), prepare=False)

    def skip(self, seconds: float) -> None:
        """Set the time of the store forward; it counts for every statement after this."""
        skipped = sql.SQL("UPDATE {}.skipped SET seconds = seconds + %s")
        self._connection.execute(skipped.format(sql.Identifier(self._clock)), (seconds,))

    def close(self) -> None:
        """Delete the schema with everything in it."""
        try:
            for name in (self._schema, self._clock):
                drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
                self._connection.execute(drop)
        except psycopg.Error as error:
            raise StoreError(f"the schema {self._schema!r} cannot be deleted: {error}") from error
        finally:
            self._connection.close()
