"""When the worker of the migration is killed, and what it comes to."""

from collections.abc import Iterable

from msgspec import Struct
from rich import box
from rich.console import RenderableType
from rich.table import Table

from perdure.cli.demo import notes
from perdure.cli.demo.migration import CUSTOMERS, Migrated, deed, expected
from perdure.cli.demo.scene import Outcome, Scene, Title, Worker
from perdure.engine.handle import Handle

TITLE = Title(
    "A long migration",
    "Many small steps and a long one, kept in one SQLite file. The worker is a\n"
    "real process, and is killed five times. Nobody cleans up or restarts the job.",
    {
        "extract": (notes.SIZES["extract"], "pages"),
        "convert": (notes.SIZES["convert"], "customers"),
        "load": (notes.SIZES["load"], "batches"),
    },
)


class Kill(Struct, frozen=True):
    """When the worker is killed."""

    phase: str
    after: int  # so many pages, customers or batches are done
    told: str
    in_doubt: bool = False  # the receiver has taken a batch, and its answer is not yet given


KILLS = (
    Kill("extract", 7, "while it extracts a page"),
    Kill("convert", 210, "in the middle of a long step"),
    Kill("convert", 440, "in the middle of the same step"),
    Kill("load", 3, "before it sends a batch"),
    Kill("load", 8, "after an effect, before it could be written down", True),
)


class Loss(Struct, frozen=True):
    """What was done when a worker was killed: without a journal it would be lost."""

    steps: int
    items: int
    effects: int


class MigrationAct:
    """The first act."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._kills = list(KILLS)
        self._losses: list[Loss] = []

    async def play(self) -> Outcome:
        """Kill and start workers until the job has ended."""
        scene = self._scene
        with scene.stage.act(TITLE):
            handle: Handle[Migrated] = await scene.app.submit(scene.app.find_job("migrate"))
            while not await self._life_of_a_worker(handle):
                pass
        outcome = self._outcome(handle.id, await handle.result("5s"))
        scene.stage.draw(closing(self._losses, outcome))
        return outcome

    async def _life_of_a_worker(self, handle: Handle[Migrated]) -> bool:
        """Start a worker, and kill it or see it through; tell whether the job has ended."""
        scene = self._scene
        if self._kills and self._kills[0].in_doubt:
            scene.receiver.hold_at(deed(self._kills[0].after))
        async with scene.worker() as worker:
            if await scene.until(handle, worker, look=lambda: self._has_begun(worker)):
                if self._losses:
                    scene.stage.say(where(notes.read(scene.folder), worker.pid))
                if await scene.until(handle, worker, look=self._is_due):
                    await self._kill(worker)
                    return False
            self._look()
            return True

    def _look(self) -> list[notes.Note]:
        """Read what the steps have written down, and show how far it is."""
        told = notes.read(self._scene.folder)
        self._scene.show(notes.done(told))
        return told

    def _has_begun(self, worker: Worker) -> bool:
        return notes.has_begun(self._look(), worker.pid)

    def _is_due(self) -> bool:
        told = self._look()
        if not self._kills:
            return False
        kill = self._kills[0]
        if kill.in_doubt:
            return self._scene.receiver.holds
        # In the middle of something, unless we came too late for that.
        now = told[-1].what != "end" or told[-1].phase != kill.phase
        return now and notes.done(told)[kill.phase] >= kill.after

    async def _kill(self, worker: Worker) -> None:
        kill = self._kills.pop(0)
        told = notes.read(self._scene.folder)
        now = notes.done(told)
        steps = len({(note.phase, note.number) for note in told if note.what == "end"})
        self._losses.append(Loss(steps, now["convert"], len(self._scene.receiver.done)))
        await self._scene.kill(worker, kill.told)

    def _outcome(self, job: str, result: Migrated) -> Outcome:
        """Count what was lost or doubled, by what the steps and the receiver saw themselves."""
        found = notes.examine(notes.read(self._scene.folder))
        rows = self._scene.receiver.rows
        missing = found.missing_steps + found.missing_items + CUSTOMERS - len(rows)
        doubled = rows.total() - len(rows)
        return Outcome(
            job=job,
            steps=found.steps,
            lost=missing + (result != expected()),
            duplicates=found.finished_again + found.too_many_items + doubled,
            more={
                "finished_steps_again": found.finished_again,
                "interrupted_steps_again": found.steps_again,
                "items": CUSTOMERS,
                "items_again": found.items_again,
                "rows_doubled": doubled,
            },
        )


def where(told: list[notes.Note], worker: int) -> str:
    """Say where a new worker goes on."""
    steps = sum(note.what == "end" for note in told)
    first = next((note for note in told if note.worker == worker and note.what == "item"), None)
    place = f", the next from customer {first.number}" if first else ""
    return f"worker {worker} goes on: {steps} steps stay done{place}"


def closing(losses: Iterable[Loss], outcome: Outcome) -> RenderableType:
    """Explain what was saved."""
    table = Table(box=box.ROUNDED)
    table.add_column("what had to be done again")
    table.add_column("starting over\nat each kill", justify="right", style="red")
    table.add_column("with Perdure", justify="right", style="green")
    found, lost = outcome.more, list(losses)
    again = f"{found['items_again']} since the last checkpoint"
    table.add_row(
        "finished steps", str(sum(loss.steps for loss in lost)), str(found["finished_steps_again"])
    )
    table.add_row("customers converted", str(sum(loss.items for loss in lost)), again)
    table.add_row(
        "batches taken", str(sum(loss.effects for loss in lost)), str(found["rows_doubled"])
    )
    return table
