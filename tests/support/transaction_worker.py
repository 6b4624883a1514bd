"""A worker that dies in the middle of a transaction, at the point that its environment names.

`python -m tests.support.transaction_worker URL KIND ADDRESS FOLDER` works until it is killed.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from perdure.app import App
from perdure.engine.run.context import JobContext
from tests.support.engine import QUICK
from tests.support.user_databases import ASYNC, UserDatabase, write


def build(url: str, database: Any, folder: Path, *, is_async: bool) -> App:
    """Make the app: three transactions, of which the second one may kill the program."""
    app = App(url, worker=QUICK)

    def die(number: int) -> None:
        fatal = os.environ.get("DIE_WITHIN") and number == 1
        if fatal and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def plain(db: Any, number: int) -> int:
        write(db, f"line {number}")
        die(number)
        return 10 * number

    async def awaited(db: Any, number: int) -> int:
        await write(db, f"line {number}")
        die(number)
        return 10 * number

    step: Any = app.transaction(database, name="book")(awaited if is_async else plain)

    @app.job
    async def order(ctx: JobContext) -> list[int]:
        return [await step(number) for number in range(3)]

    return app


def main() -> None:
    """Work."""
    url, kind, address, folder = sys.argv[1:]
    user = UserDatabase(kind, address, new=False)
    build(url, user.database(), Path(folder), is_async=kind in ASYNC).serve_sync()


if __name__ == "__main__":
    main()
