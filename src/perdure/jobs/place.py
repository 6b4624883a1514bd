"""Which effect, question or spending of a step it is; pure.

The code of a step is begun again after a failure, a crash or an answer, from its start or from its
last checkpoint. What it asks for then is the same as before if it asks for the same thing from the
same checkpoint, at the same item, as the same of its like: so each has its place.
"""

from msgspec import Struct

from perdure.base.codec import digest
from perdure.jobs.items import is_of_items


class Place(Struct, frozen=True):
    """Where the code of a step asks for something, the same whenever it is begun again.

    `part` says where the code was, and for what it asks: "<checkpoint>:<item>:<what>";
    `ordinal` counts what is asked for in that part from 1.
    """

    step: str  # the identity of the step in its job: "send_mail#2"
    ordinal: int
    part: str = ""

    @property
    def likeness(self) -> tuple[str, str]:
        """What it has in common with its like, on whichever side of a checkpoint."""
        return self.step, self.part.partition(":")[2]

    def spell(self, mark: str) -> str:
        """Give it as one short text: "act#1?5bf1c8d2e90a7b34#1", with this mark behind the step."""
        return f"{self.step}{mark}{digest(self.part)[:16]}#{self.ordinal}"


def is_of_step(spelled: str, step: str) -> bool:
    """Tell whether a question belongs to a step: to its gate, or to a place in it."""
    return spelled == step or spelled.startswith((f"{step}?", f"{step}$"))


class Places:
    """Allots the places in one run of a step's code."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}  # how often each part came by

    def allot(self, step: str, checkpoint: int, item: str, what: str) -> Place:
        """Give the place of what is asked for next."""
        part = f"{checkpoint}:{item}:{what}"
        ordinal = self._asked[part] = self._asked.get(part, 0) + 1
        return Place(step, ordinal, part)


def own_checkpoint(checkpoint: bytes | None, number: int) -> int:
    """Give the number of the checkpoint that the code goes on from; 0: from its beginning.

    Those of `ctx.items` are not the code's own: what it asks for is known by the item.
    """
    return 0 if checkpoint is None or is_of_items(checkpoint) else number
