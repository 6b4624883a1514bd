"""A statement on its way to the server, for which nobody waits."""

from collections.abc import Sequence

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

# So few bytes always find room in an idle socket: to send them holds up nobody.
_MOST = 8_192


class Flight:
    """What was sent, and what has come back of it."""

    __slots__ = ("_last", "connection", "since")

    def __init__(self, connection: PGconn) -> None:
        self.connection = connection
        self.since = 0.0  # by the loop's clock
        self._last: PGresult | None = None

    def may_start(self, values: Sequence[bytes]) -> bool:
        """Tell whether the connection has nothing else to do, and room for the values."""
        is_idle = self.connection.transaction_status == TransactionStatus.IDLE
        return is_idle and sum(map(len, values)) <= _MOST

    def start(self, statement: bytes, values: Sequence[bytes]) -> bool:
        """Send a prepared statement; False if the connection does not take it."""
        try:
            self.connection.send_query_prepared(statement, values)
            return self.connection.flush() == 0
        except psycopg.OperationalError:
            return False

    def has_landed(self) -> bool:
        """Take what has come back; True when that is all."""
        try:
            self.connection.consume_input()
            while not self.connection.is_busy():
                result = self.connection.get_result()
                if result is None:
                    return True
                self._last = result
        except psycopg.OperationalError:  # the connection is lost
            self._last = None
            return True
        return False

    @property
    def rows(self) -> int | None:
        """How many rows came back; None if it failed, or nobody knows."""
        last = self._last
        return last.ntuples if last is not None and last.status == ExecStatus.TUPLES_OK else None
