"""The doctor reads sealed payloads in several statements, and jobs do not wait for it."""

from typing import Any

from perdure.base.encryption import Encryption, generate_key
from perdure.jobs.payload import split
from perdure.store.db_thread import VerbCall
from perdure.store.open import open_store
from perdure.store.verbs.reseal import sealed_violations
from tests.support.store import entry, sql, started, write_of


class Overtaken:
    """A session whose job begins anew right after its journal was read."""

    def __init__(self, session: Any, url: str) -> None:
        self._session = session
        self._url = url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def all(self, name: str, /, **values: Any) -> Any:
        rows = self._session.all(name, **values)
        if name == "sealed_entries" and rows:
            sql(self._url, "DELETE FROM payload")
            sql(self._url, "DELETE FROM journal")
        return rows


async def test_an_entry_that_is_deleted_meanwhile_lacks_nothing(url: str) -> None:
    store = open_store(url, encryption=Encryption([generate_key()]))
    await store.open()
    claim = await started(store)
    large, chunks = split(b'["' + b"large " * 4000 + b'"]')
    await store.write(write_of(claim, entry(0, output=large), chunks=tuple(chunks)))

    def look(session: Any) -> Any:
        return sealed_violations(Overtaken(session, url), 10)  # type: ignore[arg-type]

    assert await store.reader.call(VerbCall(look, (), {})) == []
    await store.close()
