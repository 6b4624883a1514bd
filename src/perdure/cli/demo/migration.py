"""The first act: a long migration of many small steps, and one long one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from rich import box
from rich.console import RenderableType
from rich.table import Table

from perdure.app import App
from perdure.cli.demo.scene import Outcome, Scene, Title, Worker
from perdure.cli.demo.world import World
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.engine.steps.step_context import StepContext
from perdure.process.timer import sleep

PAGES = 12
ON_A_PAGE = 50
CUSTOMERS = PAGES * ON_A_PAGE
CHECKPOINT_EVERY = 25
BATCHES = 12
IN_A_BATCH = CUSTOMERS // BATCHES


class Migrated(Struct, frozen=True):
    """The result of the migration."""

    customers: int
    checksum: int
    loaded: int


def add_to(app: App, world: World) -> None:
    """Define its steps and its job."""

    @app.step
    async def extract(_ctx: StepContext, page: int) -> list[int]:
        world.note("begin", "extract", page)
        await sleep(0.15 * world.pace)
        world.note("end", "extract", page)
        return list(range(page * ON_A_PAGE, (page + 1) * ON_A_PAGE))

    @app.step
    async def convert(ctx: StepContext, customers: list[int]) -> int:
        world.note("begin", "convert", 0)
        async for customer in ctx.items(customers, every=CHECKPOINT_EVERY):
            await sleep(0.006 * world.pace)
            world.note("item", "convert", customer)
        world.note("end", "convert", 0)
        return checksum(customers)

    @app.step
    async def load(ctx: StepContext, batch: int, rows: list[int]) -> int:
        world.note("begin", "load", batch)
        await sleep(0.15 * world.pace)
        # The key is the same at every attempt, so that the receiver can tell a repetition.
        await world.do(ctx.idempotency_key, deed(batch), rows)
        world.note("end", "load", batch)
        return len(rows)

    @app.job
    async def migrate(ctx: JobContext) -> Migrated:
        pages = [await ctx.run(extract, page) for page in range(PAGES)]
        customers = [customer for page in pages for customer in page]
        total = await ctx.run(convert, customers)
        loaded = 0
        for batch in range(BATCHES):
            rows = customers[batch * IN_A_BATCH : (batch + 1) * IN_A_BATCH]
            loaded += await ctx.run(load, batch, rows)
        return Migrated(len(customers), total, loaded)


def deed(batch: int) -> str:
    """Say what is done with a batch."""
    return f"take batch {batch}"


def checksum(customers: list[int]) -> int:
    """Return what the conversion comes to."""
    return sum(customer * customer for customer in customers)


def expected() -> Migrated:
    """Return the result of a migration that nothing disturbed."""
    return Migrated(CUSTOMERS, checksum(list(range(CUSTOMERS))), CUSTOMERS)


# What the steps of the demonstration wrote down themselves; pure, but for the file.

# What there is to be done, by phase: pages, customers, batches.
SIZES = {"extract": PAGES, "convert": CUSTOMERS, "load": BATCHES}
STEPS = {("convert", 0)} | {
    (phase, number) for phase in ("extract", "load") for number in range(SIZES[phase])
}


class Note(Struct, frozen=True):
    """One line: a step began or ended, or an item was done."""

    what: str
    phase: str
    number: int
    worker: int


class Findings(Struct, frozen=True, kw_only=True):
    """What the notes prove."""

    steps: int  # that came to their end
    missing_steps: int
    missing_items: int
    steps_again: int  # that a kill had interrupted
    finished_again: int  # never allowed: steps that had ended, and ran again
    items_again: int  # since the last checkpoint
    too_many_items: int  # never allowed: items that a checkpoint had covered, and that ran again


def read(folder: Path) -> list[Note]:
    """Read all whole lines."""
    path = folder / "notes"
    text = path.read_text("ascii") if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [_note(*line.split()) for line in lines]


def _note(what: str, phase: str, number: str, worker: str) -> Note:
    return Note(what, phase, int(number), int(worker))


def done(notes: Iterable[Note]) -> Counter[str]:
    """Count by phase what was done, each thing once."""
    wanted = {"extract": "end", "convert": "item", "load": "end"}
    return Counter(
        phase for phase, _ in {(n.phase, n.number) for n in notes if n.what == wanted[n.phase]}
    )


def has_begun(notes: Iterable[Note], worker: int) -> bool:
    """Whether a worker has got to work: in the long step, to an item of it."""
    return any(
        note.worker == worker and (note.what == "item" or note.phase != "convert") for note in notes
    )


def examine(notes: Sequence[Note]) -> Findings:
    """Find out what ran, and what ran again."""
    begun = Counter((note.phase, note.number) for note in notes if note.what == "begin")
    ended = {(note.phase, note.number) for note in notes if note.what == "end"}
    items = [note for note in notes if note.what == "item"]
    different = {note.number for note in items}
    finished_again = _finished_again(notes)
    return Findings(
        steps=len(ended),
        missing_steps=len(STEPS - ended),
        missing_items=CUSTOMERS - len(different),
        steps_again=begun.total() - len(begun) - finished_again,
        finished_again=finished_again,
        items_again=len(items) - len(different),
        too_many_items=_beyond_checkpoints(items),
    )


def _finished_again(notes: Sequence[Note]) -> int:
    """Count finished steps that ran again: the next step begins only when one is recorded."""
    again, ended, finished = 0, set[tuple[str, int]](), set[tuple[str, int]]()
    for note in notes:
        step = (note.phase, note.number)
        if note.what == "end":
            ended.add(step)
        elif note.what == "begin":
            again += step in finished
            finished |= ended - {step}
    return again


def _beyond_checkpoints(items: Sequence[Note]) -> int:
    """Count items that a worker did again although more than a checkpoint lay between."""
    reached, beyond, worker = 0, 0, 0
    for place in items:
        if place.worker != worker:
            worker = place.worker
            beyond += max(0, reached - place.number - CHECKPOINT_EVERY)
        reached = place.number + 1
    return beyond


# When the worker of the migration is killed, and what it comes to.

TITLE = Title(
    "A long migration",
    "Many small steps and a long one, kept in one SQLite file. The worker is a\n"
    "real process, and is killed five times. Nobody cleans up or restarts the job.",
    {
        "extract": (SIZES["extract"], "pages"),
        "convert": (SIZES["convert"], "customers"),
        "load": (SIZES["load"], "batches"),
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
                    scene.stage.say(where(read(scene.folder), worker.pid))
                if await scene.until(handle, worker, look=self._is_due):
                    await self._kill(worker)
                    return False
            self._look()
            return True

    def _look(self) -> list[Note]:
        """Read what the steps have written down, and show how far it is."""
        told = read(self._scene.folder)
        self._scene.show(done(told))
        return told

    def _has_begun(self, worker: Worker) -> bool:
        return has_begun(self._look(), worker.pid)

    def _is_due(self) -> bool:
        told = self._look()
        if not self._kills:
            return False
        kill = self._kills[0]
        if kill.in_doubt:
            return self._scene.receiver.holds
        # In the middle of something, unless we came too late for that.
        now = told[-1].what != "end" or told[-1].phase != kill.phase
        return now and done(told)[kill.phase] >= kill.after

    async def _kill(self, worker: Worker) -> None:
        kill = self._kills.pop(0)
        told = read(self._scene.folder)
        now = done(told)
        steps = len({(note.phase, note.number) for note in told if note.what == "end"})
        self._losses.append(Loss(steps, now["convert"], len(self._scene.receiver.done)))
        await self._scene.kill(worker, kill.told)

    def _outcome(self, job: str, result: Migrated) -> Outcome:
        """Count what was lost or doubled, by what the steps and the receiver saw themselves."""
        found = examine(read(self._scene.folder))
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


def where(told: list[Note], worker: int) -> str:
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
