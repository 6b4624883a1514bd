"""The second act: many mails, each sent once, though the worker dies between and in the middle."""

from collections import Counter

from rich import box
from rich.table import Table

from perdure.app import App
from perdure.cli.demo.scene import Outcome, Scene, Title, steps_of
from perdure.cli.demo.world import World
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.jobs.effect import Effect
from perdure.process.timer import sleep

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jule", "Kim", "Lea")
CHECKPOINT_EVERY = 6
FIRST_KILL = 4  # mails are out, and none is covered by a checkpoint

TITLE = Title(
    "A mailing",
    "Each mail is an effect: it is written into a ledger before it leaves, and when\n"
    "it has arrived. So the next worker knows which mails are out.",
    {"mails": (len(PEOPLE), "mails")},
)


def add_to(app: App, world: World) -> None:
    """Define its step and its job."""

    @app.step
    async def send_all(ctx: StepContext, people: list[str]) -> int:
        async for person in ctx.items(people, every=CHECKPOINT_EVERY):
            await sleep(0.1 * world.pace)
            await world.effect(ctx, "mail", deed(person))
        return len(people)

    @app.job
    async def newsletter(ctx: JobContext, people: list[str]) -> int:
        return await ctx.run(send_all, people)


def deed(person: str) -> str:
    """Say what the mail server does."""
    return f"mail to {person}"


MAILS = [deed(person) for person in PEOPLE]


class MailingAct:
    """The second act."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def play(self) -> Outcome:
        """Kill the worker twice."""
        scene = self._scene
        with scene.stage.act(TITLE):
            job = scene.app.find_job("newsletter")
            handle = await scene.app.submit(job, list(PEOPLE))
            async with scene.worker() as worker:
                await scene.until(handle, worker, look=lambda: self._sent() >= FIRST_KILL)
                await scene.kill(worker, f"after {self._sent()} mails, before any checkpoint")
            async with scene.worker() as worker:
                await scene.held(handle, worker, MAILS[8])
                self._sent()
                await scene.kill(worker, f"the {MAILS[8]} is out, and only the mail server knows")
            async with scene.worker() as worker:
                await scene.until(handle, worker, look=lambda: self._sent() < 0)
            self._sent()
        scene.stage.draw(self._ledger(await handle.effects()))
        return await self._outcome(handle)

    def _sent(self) -> int:
        """Show how many mails are out."""
        sent = sum(what in MAILS for what in self._scene.receiver.done)
        self._scene.show(Counter(mails=sent))
        return sent

    async def _outcome(self, handle: Handle[int]) -> Outcome:
        sent = [what for what in self._scene.receiver.done if what in MAILS]
        return Outcome(
            job=handle.id,
            steps=await steps_of(handle),
            lost=len(set(MAILS) - set(sent)) + (await handle.result("5s") != len(PEOPLE)),
            duplicates=len(sent) - len(set(sent)),
            more={"mails": len(sent), "mails_twice": len(sent) - len(set(sent))},
        )

    def _ledger(self, lines: list[Effect]) -> Table:
        """Draw what the ledger says beside what the mail server saw."""
        table = Table(box=box.ROUNDED)
        table.add_column("the ledger")
        table.add_column("state", style="green")
        table.add_column("key", style="dim")
        table.add_column("the mail server\nwas asked", justify="right")
        table.add_column("\nsent", justify="right", style="green")
        receiver = self._scene.receiver
        for line in lines:
            asked, sent = receiver.asked[line.target], receiver.done.count(line.target)
            table.add_row(line.target, str(line.state), line.key[:12], str(asked), str(sent))
        return table
