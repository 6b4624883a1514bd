"""The third act: an order that fails in the middle, and is undone in the reverse order."""

from rich.text import Text

from perdure.app import App
from perdure.base.errors import Permanent
from perdure.cli.demo.scene import Outcome, Scene, Title, steps_of
from perdure.cli.demo.world import World
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.state import JobState

DONE = ("pay 40 USD", "reserve a lamp")
UNDONE = ("release the lamp", "refund 40 USD")
PROBLEM = "no courier delivers there"

TITLE = Title(
    "An order that fails",
    "Payment and stock are done, then the courier says no. What was done is undone,\n"
    "the last first. The worker dies in the middle of the undo.",
)


def add_to(app: App, world: World) -> None:
    """Define its steps, what undoes them, and its job."""

    @app.step
    async def pay(ctx: StepContext) -> str:
        return await world.effect(ctx, "payment", DONE[0])

    @pay.compensate
    async def refund(ctx: StepContext, _receipt: str | None) -> None:
        await world.effect(ctx, "payment", UNDONE[1])

    @app.step
    async def reserve(ctx: StepContext) -> str:
        return await world.effect(ctx, "stock", DONE[1])

    @reserve.compensate
    async def release(ctx: StepContext, _receipt: str | None) -> None:
        await world.effect(ctx, "stock", UNDONE[0])

    @app.step
    async def ship(_ctx: StepContext) -> None:
        raise Permanent(PROBLEM)

    @app.job
    async def place_order(ctx: JobContext) -> None:
        await ctx.run(pay)
        await ctx.run(reserve)
        await ctx.run(ship)


class OrderAct:
    """The third act."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def play(self) -> Outcome:
        """Kill the worker while it undoes."""
        scene = self._scene
        with scene.stage.act(TITLE):
            handle = await scene.app.submit(scene.app.find_job("place_order"))
            async with scene.worker() as worker:
                await scene.held(handle, worker, UNDONE[0])
                await scene.kill(
                    worker, f"in the middle of the undo: {UNDONE[0]!r} has just been asked for"
                )
            async with scene.worker() as worker:
                await scene.until(handle, worker)
                scene.stage.say(f"the job is {await handle.status()}")
        scene.stage.draw(self._course())
        return await self._outcome(handle)

    def _done(self) -> list[str]:
        return [what for what in self._scene.receiver.done if what in (*DONE, *UNDONE)]

    def _course(self) -> Text:
        """Draw in which order the world was asked for what."""
        text = Text()
        for what in self._done():
            undo = what in UNDONE
            if what == UNDONE[0]:
                text.append(f"  ✗ ship: {PROBLEM}\n", "red")
            text.append(f"  {'↶' if undo else '✓'} {what}\n", "yellow" if undo else "green")
        text.rstrip()
        return text

    async def _outcome(self, handle: Handle[None]) -> Outcome:
        done = self._done()
        undone = await handle.status() is JobState.COMPENSATED
        return Outcome(
            job=handle.id,
            steps=await steps_of(handle),
            lost=lost_of(done) + (not undone),
            duplicates=len(done) - len(set(done)),
            more={"undone": [what for what in done if what in UNDONE]},
        )


def lost_of(done: list[str]) -> int:
    """Count what was not done; what is done in the wrong order is as bad."""
    wanted = [*DONE, *UNDONE]
    missing = len(set(wanted) - set(done))
    return missing or int(sorted(set(done), key=done.index) != wanted)
