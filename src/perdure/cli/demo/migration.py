"""The first scenario: a long migration of many small steps and one long one.

Its steps note in a file what they really did. The outcome is computed from these notes and from
what the fake service received, not from what the journal claims.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from rich import box
from rich.console import RenderableType
from rich.table import Table

from perdure.app import App
from perdure.cli.demo.harness import Demo, DemoWorker, Heading, Outcome, ServiceClient
from perdure.engine.handle import Handle
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


def add_migration(app: App, client: ServiceClient) -> None:
    """Define its steps and its job."""

    @app.step
    async def extract(page: int) -> list[int]:
        client.note("begin", "extract", page)
        await sleep(0.15 * client.pace)
        client.note("end", "extract", page)
        return list(range(page * ON_A_PAGE, (page + 1) * ON_A_PAGE))

    @app.step
    async def convert(ctx: StepContext, customers: list[int]) -> int:
        client.note("begin", "convert", 0)
        async for customer in ctx.items(customers, every=CHECKPOINT_EVERY):
            await sleep(0.006 * client.pace)
            client.note("item", "convert", customer)
        client.note("end", "convert", 0)
        return checksum(customers)

    @app.step
    async def load(ctx: StepContext, batch: int, rows: list[int]) -> int:
        client.note("begin", "load", batch)
        await sleep(0.15 * client.pace)
        # The key is the same at every attempt, so that the service recognises a repetition.
        await client.do(ctx.idempotency_key, load_of(batch), rows)
        client.note("end", "load", batch)
        return len(rows)

    @app.job
    async def migrate() -> Migrated:
        pages = [await extract(page) for page in range(PAGES)]
        customers = [customer for page in pages for customer in page]
        total = await convert(customers)
        loaded = 0
        for batch in range(BATCHES):
            rows = customers[batch * IN_A_BATCH : (batch + 1) * IN_A_BATCH]
            loaded += await load(batch, rows)
        return Migrated(len(customers), total, loaded)


def load_of(batch: int) -> str:
    """Return the request for a batch."""
    return f"load batch {batch}"


def checksum(customers: list[int]) -> int:
    """Return the checksum of a conversion."""
    return sum(customer * customer for customer in customers)


def expected() -> Migrated:
    """Return the result of an undisturbed migration."""
    return Migrated(CUSTOMERS, checksum(list(range(CUSTOMERS))), CUSTOMERS)


# The notes of the steps.

# The amount of work by phase: pages, customers, batches.
SIZES = {"extract": PAGES, "convert": CUSTOMERS, "load": BATCHES}
STEPS = {("convert", 0)} | {
    (phase, number) for phase in ("extract", "load") for number in range(SIZES[phase])
}


class Note(Struct, frozen=True):
    """One note: a step began or ended, or an item was done."""

    what: str
    phase: str
    number: int
    worker: int


class Findings(Struct, frozen=True, kw_only=True):
    """What the notes prove."""

    steps: int  # that finished
    missing_steps: int
    missing_items: int
    steps_again: int  # interrupted by a kill, and run again
    finished_again: int  # never allowed: steps that finished and ran again
    items_again: int  # since the last checkpoint
    too_many_items: int  # never allowed: items that a checkpoint covered and that ran again


def read(folder: Path) -> list[Note]:
    """Return the notes so far; an incomplete line is left out."""
    path = folder / "notes"
    text = path.read_text("ascii") if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [_note(*line.split()) for line in lines]


def _note(what: str, phase: str, number: str, worker: str) -> Note:
    return Note(what, phase, int(number), int(worker))


def done(notes: Iterable[Note]) -> Counter[str]:
    """Return how much of each phase is done; repetitions count once."""
    wanted = {"extract": "end", "convert": "item", "load": "end"}
    return Counter(
        phase for phase, _ in {(n.phase, n.number) for n in notes if n.what == wanted[n.phase]}
    )


def has_begun(notes: Iterable[Note], worker: int) -> bool:
    """Whether a worker has begun to work; in the long step, on an item."""
    return any(
        note.worker == worker and (note.what == "item" or note.phase != "convert") for note in notes
    )


def examine(notes: Sequence[Note]) -> Findings:
    """Return what ran, and what ran again."""
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
    """Count finished steps that ran again.

    A step counts as finished when the next one begins, since only then is it recorded.
    """
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
    """Count items that ran again although a checkpoint covered them."""
    reached, beyond, worker = 0, 0, 0
    for place in items:
        if place.worker != worker:
            worker = place.worker
            beyond += max(0, reached - place.number - CHECKPOINT_EVERY)
        reached = place.number + 1
    return beyond


# The scenario.

MIGRATION = Heading(
    "A long migration",
    "Many small steps and one long step; their results are kept in a SQLite file.\n"
    "The worker is a real OS process. It is killed five times, and each time a new\n"
    "worker continues the job. Nobody cleans up or restarts anything.",
    {
        "extract": (SIZES["extract"], "pages"),
        "convert": (SIZES["convert"], "customers"),
        "load": (SIZES["load"], "batches"),
    },
)


class PlannedKill(Struct, frozen=True):
    """When the worker is killed."""

    phase: str
    after: int  # when this many pages, customers or batches are done
    shown: str  # after `kill -9`
    in_doubt: bool = False  # after the service accepted a batch, before it answers


KILLS = (
    PlannedKill("extract", 7, "while it extracts a page"),
    PlannedKill("convert", 210, "in the middle of a long step"),
    PlannedKill("convert", 440, "again in the middle of that step"),
    PlannedKill("load", 3, "before it sends a batch"),
    PlannedKill(
        "load", 8, "after the service accepted a batch, before the worker could record it", True
    ),
)


class Loss(Struct, frozen=True):
    """What was done when a worker was killed, and would be lost without a journal."""

    steps: int
    items: int
    effects: int


class MigrationScenario:
    """The first scenario."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._kills = list(KILLS)
        self._losses: list[Loss] = []

    async def run(self) -> Outcome:
        """Start and kill workers until the job has ended."""
        demo = self._demo
        with demo.display.scenario(MIGRATION):
            handle: Handle[Migrated] = await demo.app.submit(demo.app.find_job("migrate")())
            while not await self._run_worker(handle):
                pass
        outcome = self._outcome(handle.id, await handle.result("5s"))
        demo.display.draw(summary_table(self._losses, outcome))
        return outcome

    async def _run_worker(self, handle: Handle[Migrated]) -> bool:
        """Start a worker; return False if it was killed, True if the job has ended."""
        demo = self._demo
        if self._kills and self._kills[0].in_doubt:
            demo.service.hold_at(load_of(self._kills[0].after))
        async with demo.worker() as worker:
            if await demo.until(handle, worker, look=lambda: self._has_begun(worker)):
                if self._losses:
                    demo.display.say(resumed_at(read(demo.folder), worker.pid))
                if await demo.until(handle, worker, look=self._is_due):
                    await self._kill(worker)
                    return False
            self._look()
            return True

    def _look(self) -> list[Note]:
        """Return the notes so far, and show the progress."""
        notes = read(self._demo.folder)
        self._demo.show(done(notes))
        return notes

    def _has_begun(self, worker: DemoWorker) -> bool:
        return has_begun(self._look(), worker.pid)

    def _is_due(self) -> bool:
        notes = self._look()
        if not self._kills:
            return False
        kill = self._kills[0]
        if kill.in_doubt:
            return self._demo.service.holds
        # In the middle of some work, unless it is too late for that.
        now = notes[-1].what != "end" or notes[-1].phase != kill.phase
        return now and done(notes)[kill.phase] >= kill.after

    async def _kill(self, worker: DemoWorker) -> None:
        kill = self._kills.pop(0)
        notes = read(self._demo.folder)
        now = done(notes)
        steps = len({(note.phase, note.number) for note in notes if note.what == "end"})
        self._losses.append(Loss(steps, now["convert"], len(self._demo.service.done)))
        await self._demo.kill(worker, kill.shown)

    def _outcome(self, job: str, result: Migrated) -> Outcome:
        """Count what was lost or duplicated, by the notes and by what the service received."""
        found = examine(read(self._demo.folder))
        rows = self._demo.service.rows
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


def resumed_at(notes: list[Note], worker: int) -> str:
    """Return where a new worker continues, in words."""
    steps = sum(note.what == "end" for note in notes)
    first = next((note for note in notes if note.worker == worker and note.what == "item"), None)
    place = f"; the long step resumes at customer {first.number}" if first else ""
    return f"worker {worker} continues: {steps} finished steps are kept{place}"


def summary_table(losses: Iterable[Loss], outcome: Outcome) -> RenderableType:
    """Return a table of what was saved."""
    table = Table(box=box.ROUNDED)
    table.add_column("work that was repeated")
    table.add_column("restarting\nfrom scratch", justify="right", style="red")
    table.add_column("with Perdure", justify="right", style="green")
    found, lost = outcome.more, list(losses)
    again = f"{found['items_again']} since the last checkpoint"
    table.add_row(
        "finished steps", str(sum(loss.steps for loss in lost)), str(found["finished_steps_again"])
    )
    table.add_row("customers converted", str(sum(loss.items for loss in lost)), again)
    table.add_row(
        "batches loaded", str(sum(loss.effects for loss in lost)), str(found["rows_doubled"])
    )
    return table
