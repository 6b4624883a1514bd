"""What a step returns when it is not done yet."""

from typing import Any, Generic, TypeVar

from msgspec import Struct

R_co = TypeVar("R_co", covariant=True)


class Partial(Struct, Generic[R_co], frozen=True):
    """So much is done: the step is called again and goes on from the checkpoint.

    Attributes:
        output: What there is already; a compensation gets it if the step never ends.
        checkpoint: What `previous_checkpoint` of the next call gives.
    """

    output: R_co
    checkpoint: Any
