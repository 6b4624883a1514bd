"""A parent with a child and a grandchild, all of which can be undone; and a worker for them.

`python -m tests.support.saga_family URL FOLDER` works until it is killed.
"""

import sys
from pathlib import Path

from perdure import Retry
from perdure.app import App
from perdure.base.errors import Permanent
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from tests.support.engine import QUICK

ONCE = Retry(attempts=1)


def build(  # noqa: C901 - nine small functions
    url: str, folder: Path, *, pivot: bool = False
) -> App:
    """Make the app; what happens is noted in the folder, and a file of a name breaks that step."""
    app = App(url, worker=QUICK)

    def note(what: str) -> None:
        if (folder / what).exists():
            raise Permanent(f"{what} is broken")
        with (folder / "log").open("a") as file:
            file.write(f"{what}\n")

    @app.step(retry=ONCE)
    async def act(ctx: StepContext, name: str) -> str:
        note(name)
        return name

    @act.compensate(retry=ONCE)
    async def undo(ctx: StepContext, name: str, output: str | None) -> None:
        note(f"-{name}")

    @app.step(retry=ONCE, pivot=pivot)
    async def look(ctx: StepContext) -> None: ...

    @app.job
    async def grandchild(ctx: JobContext) -> None:
        await act("c")

    @app.job
    async def child(ctx: JobContext) -> str:
        await act("b1")
        await ctx.child(grandchild())
        await act("b2")
        await look()
        return "done"

    @app.job
    async def parent(ctx: JobContext) -> None:
        await act("a1")
        await ctx.child(child())
        await act("a2")
        raise Permanent("and now the whole thing")

    @app.job
    async def harmless(ctx: JobContext) -> None:
        await look()

    @app.job
    async def guardian(ctx: JobContext) -> None:
        await ctx.child(harmless())
        raise Permanent("nothing was done")

    return app


def log(folder: Path) -> list[str]:
    """Give what happened."""
    return (folder / "log").read_text().split()


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2])).serve_sync()
