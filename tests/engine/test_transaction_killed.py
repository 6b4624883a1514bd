"""Transactions of programs that are killed: between what were two commits, there is nothing."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

import perdure
from tests.support.transaction_worker import build
from tests.support.user_databases import UserDatabase, address_of

# The second transaction of three: the first one is in the journal.
POINTS = {
    "within": {"DIE_WITHIN": "yes"},
    "before the commit": {"PERDURE_CRASH_AT": "before_transaction_commit:2"},
    "after the commit": {"PERDURE_CRASH_AT": "after_transaction_commit:2"},
}


@pytest.mark.parametrize("kind", ["sqlite url", "postgres url", "async url"])
@pytest.mark.parametrize("point", POINTS)
def test_a_program_that_is_killed_leaves_each_transaction_done_once(
    url: str, tmp_path: Path, kind: str, point: str, request: pytest.FixtureRequest
) -> None:
    address = address_of(kind, tmp_path, lambda: request.getfixturevalue("postgres_server"))
    user = UserDatabase(kind, address)

    async def main() -> list[int]:
        app = build(url, user.database(), tmp_path, is_async=user.is_async)
        try:
            handle = await app.submit(app.find_job("order")())
            await _killed(url, user, tmp_path, POINTS[point])
            # What the dead worker has committed, although the journal of the job does not have it.
            committed = {"after the commit": 2}.get(point, 1)
            assert len(user.lines()) == len(user.recorded()) == committed
            async with app.running():
                return await handle.result("20s")
        finally:
            await app.close()

    (tmp_path / "died").unlink(missing_ok=True)
    assert perdure.run(main) == [0, 10, 20]
    assert user.lines() == ["line 0", "line 1", "line 2"]
    assert user.recorded() == ["book#1", "book#2", "book#3"]


async def _killed(url: str, user: UserDatabase, folder: Path, point: dict[str, str]) -> None:
    arguments = (url, user.kind, user.address, str(folder))
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.transaction_worker", *arguments),
        env=os.environ | point,
    )
    async with asyncio.timeout(60):
        assert await worker.wait() == -signal.SIGKILL
    (folder / "died").touch()
