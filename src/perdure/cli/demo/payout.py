"""The last act: a payment that waits for a person, while no worker lives at all."""

from rich.text import Text

from perdure.app import App
from perdure.base.errors import DecisionRefused
from perdure.cli.demo.scene import Outcome, Scene, Title, steps_of
from perdure.cli.demo.world import World
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.approval import APPROVER, Person
from perdure.jobs.state import JobState

USD = 900
ANN = Person(id="ann", tenant="default", roles=frozenset({APPROVER}))
KIM = Person(id="kim", tenant="default", roles=frozenset({APPROVER}))

TITLE = Title(
    "An approval",
    "The step is tagged as financial: a person must say yes to exactly this call.\n"
    "The job waits without a worker, and the answer counts although none lives.",
)


def add_to(app: App, world: World) -> None:
    """Define its step and its job."""

    @app.step(tags={"financial"})
    async def transfer(ctx: StepContext, usd: int) -> str:
        return await world.effect(ctx, "payment", deed(usd))

    @app.job
    async def pay_out(ctx: JobContext, usd: int) -> str:
        return await ctx.run(transfer, usd)


def deed(usd: int) -> str:
    """Say what the bank does."""
    return f"transfer {usd} USD"


class PayoutAct:
    """The last act."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._refused = ""

    async def play(self) -> Outcome:
        """Kill the worker while the job waits, decide, and let another one do it."""
        scene = self._scene
        with scene.stage.act(TITLE):
            job = scene.app.find_job("pay_out")
            handle: Handle[str] = await scene.app.submit(job, USD, user=KIM.id)
            async with scene.worker() as worker:
                await scene.until(handle, worker, JobState.WAITING)
                scene.stage.say(f"the job of kim is {await handle.status()}: it asks people first")
                await scene.kill(worker, "nobody works now, and nothing is lost by that")
            await self._decide()
            async with scene.worker() as worker:
                await scene.until(handle, worker)
                scene.stage.say(f"the job is {await handle.status()}: {await handle.result('5s')}")
        return await self._outcome(handle)

    async def _decide(self) -> None:
        app, stage = self._scene.app, self._scene.stage
        (asked,) = await app.approvals()
        told = f"{asked.title}: {asked.risk}, {', '.join(asked.reasons)}; {asked.shown.decode()}"
        stage.draw(Text(f"  ? {told}", "yellow"))
        try:
            await app.decide(asked, "approve", by=KIM, reason="it is mine")
        except DecisionRefused as refusal:
            self._refused = refusal.code
            stage.say(f"kim says yes to a job of her own: refused ({refusal.code})")
        await app.decide(asked, "approve", by=ANN, reason="the invoice is right")
        stage.say("ann says yes: the invoice is right", "bold green")

    async def _outcome(self, handle: Handle[str]) -> Outcome:
        times = self._scene.receiver.done.count(deed(USD))
        good = await handle.status() is JobState.COMPLETED and self._refused == "four eyes"
        return Outcome(
            job=handle.id,
            steps=await steps_of(handle),
            lost=int(times < 1) + (not good),
            duplicates=max(0, times - 1),
            more={"approved_by": ANN.id},
        )
