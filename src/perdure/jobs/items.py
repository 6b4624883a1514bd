"""Work through many items in one step: which are done, when to save, what to do with bad ones.

Pure: `StepContext.items` drives it and passes the time.

A checkpoint holds a position and a fingerprint of the keys of all items before it. A list that has
grown at its end therefore continues where it stopped, and a list that was changed or reordered is
refused: otherwise items would be left out or done twice.

Results that the code collects are part of the checkpoint: those of an item become durable with the
position behind it, and those of an item that fails are dropped with it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from perdure.base.checked import Checked
from perdure.base.codec import Digest, canonical, decode, digest
from perdure.base.errors import DefinitionError, Drift
from perdure.jobs.failure import Failure

OnError: TypeAlias = Literal["fail", "skip", "quarantine"]

MAX_BAD_ITEMS = 100  # that are kept with their errors: a checkpoint must stay small
BY_A_PERSON = "a person left it out"
LONGEST_TEXT = 200  # characters that are kept of a key or an error

ItemKey: TypeAlias = str | int

_FORMAT = 1


class ItemPolicy(Checked, frozen=True, kw_only=True):
    """What to do with an item that fails.

    Attributes:
        on_error: "fail": the step fails, and continues with this item when it is retried.
            "skip": the item is reported, and the others are done.
            "quarantine": as "skip", but at the end the step fails for good and names the bad
            items; a person who retries it retries only those.
        attempts: Attempts at an item before it counts as bad.
        max_bad: With more bad items than this the step fails: the items are not to blame.
    """

    on_error: OnError = "fail"
    attempts: int = 1
    max_bad: int = MAX_BAD_ITEMS


class ItemVerdict(StrEnum):
    """What follows when an item fails."""

    FAIL = "fail"  # the step fails, and its own retry policy applies
    AGAIN = "again"  # the same, but count the attempt at this item: save the checkpoint
    CONTINUE = "continue"  # save the checkpoint, and continue with the next item


class BadItem(Struct, frozen=True):
    """An item that failed, with its position in the list."""

    place: int
    key: str
    error: str


class ItemReport(Struct, frozen=True, kw_only=True):
    """How many items are done, and which are not."""

    done: int
    skipped: tuple[BadItem, ...] = ()
    quarantined: tuple[BadItem, ...] = ()


class _Saved(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The checkpoint: everything before `place` is done, except for what is named here."""

    # The version of this format. The odd name distinguishes it from checkpoints of users.
    items: int = field(name="ctx.items")
    place: int = 0
    before: str = ""  # fingerprint of the keys before `place`
    skipped: list[BadItem] = field(default_factory=list[BadItem])
    quarantined: list[BadItem] = field(default_factory=list[BadItem])
    again: list[int] = field(
        default_factory=list[int]
    )  # released from quarantine, to be retried first
    trouble: list[int] | None = None  # the item that failed last, and how often
    left: list[int] = field(default_factory=list[int])  # a person leaves them out
    ended: bool = False  # every item was tried
    # What the code has collected: pairs of the position of an item, and a result of it.
    results: list[list[Any]] = field(default_factory=list[list[Any]])


class SaveInterval:
    """When to save a checkpoint: after a number of items or seconds, whichever comes first."""

    __slots__ = ("_count", "_since", "after", "every")

    def __init__(self, every: int, after: float, now: float) -> None:
        if every < 1:
            raise ValueError(f"`every` must be 1 or more, not {every}")
        self.every = every
        self.after = after
        self._count = 0
        self._since = now

    def due(self, now: float) -> bool:
        """Count one item and return whether it is time to save; if so, start counting anew."""
        self._count += 1
        if self._count < self.every and now - self._since < self.after:
            return False
        self._count, self._since = 0, now
        return True


class Cursor:
    """Which items are done, and which comes next.

    Attributes:
        in_hand: The position of the item being worked on; None between items.
    """

    __slots__ = ("_before", "_collected", "_keys", "_saved", "_twins", "in_hand", "policy")

    def __init__(self, keys: Sequence[ItemKey], saved: _Saved, policy: ItemPolicy) -> None:
        self._keys = keys
        self._saved = saved
        self._before = Digest()
        for key in keys[: saved.place]:
            self._before.add(str(key))
        self.policy = policy
        self._twins: dict[int, int] | None = None  # numbers the items whose key is not unique
        self.in_hand: int | None = None
        self._collected: list[list[Any]] = []  # of the item in hand

    @classmethod
    def start(
        cls, keys: Sequence[ItemKey], checkpoint: Any = None, policy: ItemPolicy | None = None
    ) -> "Cursor":
        """Begin, or continue from a checkpoint.

        Raises:
            Drift: The checkpoint is of other items, or not of items at all.
        """
        saved = _Saved(items=_FORMAT) if checkpoint is None else _read(checkpoint)
        made = cls(keys, saved, policy or ItemPolicy())
        if saved.place > len(keys) or (saved.place and made._before.hex() != saved.before):
            raise Drift(
                f"the first {saved.place} items are not the ones that are already done: pass the "
                "same items in the same order at each attempt, or fork the job to start over"
            )
        if saved.ended:  # a person retries the step: only what is in quarantine is left to do
            saved.again += [aside.place for aside in saved.quarantined]
            saved.quarantined, saved.ended = [], False
        return made

    def remaining(self) -> Iterator[int]:
        """Yield the positions to work on; settle each one before asking for the next."""
        while (place := _next(self._saved)) < len(self._keys):
            if place in self._saved.left:
                self._leave_out(place)
            else:
                yield place

    @property
    def key_in_hand(self) -> str:
        """The key of the item in hand, numbered if it is not unique; empty between items."""
        if self.in_hand is None:
            return ""
        if self._twins is None:
            self._twins = _twins(self._keys)
        number = self._twins.get(self.in_hand)
        twin = "" if number is None else f" ({number})"
        return f"item {self._keys[self.in_hand]}{twin}"

    def begin(self, place: int) -> None:
        """Start with an item."""
        self.in_hand, self._collected = place, []

    def collect(self, result: Any) -> None:
        """Keep a result of the item in hand, as plain JSON values.

        Raises:
            DefinitionError: There is no item in hand.
        """
        if self.in_hand is None:
            raise DefinitionError("ctx.collect is called inside the loop over ctx.items")
        self._collected.append([self.in_hand, result])

    @property
    def collects(self) -> bool:
        """Whether the code collects results."""
        return bool(self._saved.results or self._collected)

    def results(self) -> list[Any]:
        """Return all results in the order of the items, also those of earlier attempts."""
        found = sorted((*self._saved.results, *self._collected), key=itemgetter(0))
        return [result for _, result in found]

    def done(self, place: int) -> None:
        """Mark an item as done."""
        self.in_hand = None
        self._saved.results += self._collected
        self._collected = []
        self._settle(place)

    def finish(self) -> ItemReport:
        """Return the final report; the caller saves, and fails if an item is in quarantine."""
        self._saved.ended = bool(self._saved.quarantined)
        return self.report()

    def failed(self, failure: Failure) -> ItemVerdict:
        """Decide what follows the failure of the item in hand."""
        place, self.in_hand = self.in_hand, None
        self._collected = []
        if place is None:
            return ItemVerdict.FAIL
        known = self._saved.trouble
        tries = 1 + (known[1] if known and known[0] == place else 0)
        self._saved.trouble = [place, tries]
        if self.policy.on_error == "fail":
            return ItemVerdict.FAIL
        if tries < self.policy.attempts and not failure.permanent:
            return ItemVerdict.AGAIN
        return self._put_aside(place, failure)

    def checkpoint(self) -> dict[str, Any]:
        """Return what must be saved, as plain JSON values."""
        self._saved.before = self._before.hex()
        return msgspec.to_builtins(self._saved)

    def report(self) -> ItemReport:
        """Return how many items are done, and which are not."""
        saved = self._saved
        return ItemReport(
            done=saved.place - len(saved.skipped) - len(saved.quarantined) - len(saved.again),
            skipped=tuple(saved.skipped),
            quarantined=tuple(saved.quarantined),
        )

    def _put_aside(self, place: int, failure: Failure) -> ItemVerdict:
        saved = self._saved
        if len(saved.skipped) + len(saved.quarantined) >= min(self.policy.max_bad, MAX_BAD_ITEMS):
            return ItemVerdict.FAIL
        shown = str(self._keys[place])[:LONGEST_TEXT]
        aside = BadItem(place, shown, failure.summary()[:LONGEST_TEXT])
        (saved.skipped if self.policy.on_error == "skip" else saved.quarantined).append(aside)
        self._settle(place)
        return ItemVerdict.CONTINUE

    def _leave_out(self, place: int) -> None:
        self._saved.left.remove(place)
        if len(self._saved.skipped) < MAX_BAD_ITEMS:
            shown = str(self._keys[place])[:LONGEST_TEXT]
            self._saved.skipped.append(BadItem(place, shown, BY_A_PERSON))
        self._settle(place)

    def _settle(self, place: int) -> None:
        saved = self._saved
        saved.trouble = None
        if place in saved.again:
            saved.again.remove(place)
        elif place == saved.place:
            saved.place += 1
            self._before.add(str(self._keys[place]))


def _next(saved: _Saved) -> int:
    return saved.again[0] if saved.again else saved.place


def leave_next_out(checkpoint: bytes) -> bytes | None:
    """Return a checkpoint without the item at which a step failed; None if it failed elsewhere."""
    if not is_of_items(checkpoint):
        return None
    saved = decode(checkpoint, _Saved)
    if saved.ended:  # what is in quarantine is all that is left
        saved.left += [aside.place for aside in saved.quarantined]
    elif saved.trouble is not None:
        saved.left.append(saved.trouble[0])
    return msgspec.json.encode(saved) if saved.left else None


def _twins(keys: Sequence[ItemKey]) -> dict[int, int]:
    """Return the number of each item whose key an earlier item has, by position."""
    seen = Counter[str]()
    twins: dict[int, int] = {}
    for place, key in enumerate(map(str, keys)):
        seen[key] += 1
        if seen[key] > 1:
            twins[place] = seen[key]
    return twins


def key_of(item: Any) -> ItemKey:
    """Return the default key of an item: itself, or a digest of its content."""
    return item if isinstance(item, str | int) else digest(canonical(item))


def is_of_items(checkpoint: bytes) -> bool:
    """Whether a checkpoint was saved by `ctx.items`, not by the code of the step."""
    try:
        decode(checkpoint, _Saved)
    except Drift:
        return False
    return True


def _read(checkpoint: Any) -> _Saved:
    try:
        return msgspec.convert(checkpoint, _Saved)
    except msgspec.ValidationError as error:
        raise Drift(f"the checkpoint of this step is not one of `ctx.items`: {error}") from None
