"""What the steps of the demonstration wrote down themselves; pure, but for the file."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from perdure.cli.demo.migration import BATCHES, CHECKPOINT_EVERY, CUSTOMERS, PAGES

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
    """Tell whether a worker has got to work: in the long step, to an item of it."""
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
