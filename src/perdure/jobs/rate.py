"""How many jobs of a queue may be claimed by its rate; pure.

A rate allows so many claims in *any* window of `per` seconds: each claim counts for that long, and
then its place is free again. A bucket of tokens that fills steadily would allow nearly twice as
many in one window, since it may be full at its beginning.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

Claims: TypeAlias = tuple[tuple[float, int], ...]  # when, and how many; the oldest first

# Beyond this, the two claims that are closest to each other count as one, at the later time: so
# a place becomes free a little late, and never too early.
MOST_CLAIMS: Final = 64


def still_counting(claims: Sequence[Sequence[float]], now: float, per: float) -> Claims:
    """Return the claims that still count.

    One that lies ahead was made by a clock that was ahead, or before the machine was restarted: it
    counts as made now, or its place would not be free before the clock is there again.
    """
    return tuple((min(at, now), int(number)) for at, number in claims if min(at, now) + per > now)


def places_left(claims: Claims, rate: int) -> int:
    """Return how many more may be claimed now."""
    return max(0, rate - sum(number for _, number in claims))


def with_claim(claims: Claims, now: float, number: int) -> Claims:
    """Return the claims with one more."""
    more = [*claims, (now, number)]
    if len(more) > MOST_CLAIMS:
        place = min(range(len(more) - 1), key=lambda place: more[place + 1][0] - more[place][0])
        more[place : place + 2] = [(more[place + 1][0], more[place][1] + more[place + 1][1])]
    return tuple(more)
