"""In which order things start, when some need others; pure."""

from collections.abc import Iterable, Mapping, Sequence

Needs = Mapping[str, Sequence[str]]


def start_order(needs: Needs, wanted: Iterable[str]) -> list[str]:
    """Give what is wanted, and all that it needs, each behind what it needs itself.

    Apart from that the order is the given one, so that a file is started as it is written.

    Args:
        needs: What each thing needs; of what is not in here nothing is known, and it is left out.
        wanted: What is to be started.

    Raises:
        Cycle: Some need each other.
    """
    done: dict[str, None] = {}
    for each in wanted:
        _visit(each, needs, done)
    return list(done)


class Cycle(Exception):
    """Some things need each other; `members` is one such ring, in the order of the needs."""

    def __init__(self, members: Sequence[str]) -> None:
        super().__init__(" → ".join([*members, members[0]]))
        self.members = tuple(members)


def find_cycles(needs: Needs) -> list[Cycle]:
    """Give rings of things that need each other, so that every one in a ring is in one of these."""
    left = dict(needs)
    found: list[Cycle] = []
    while left:
        try:
            start_order(left, left)
        except Cycle as cycle:
            found.append(cycle)
            for member in cycle.members:
                del left[member]
        else:
            break
    return found


def _visit(start: str, needs: Needs, done: dict[str, None]) -> None:
    """Go down the needs without recursion: a chain of them may be long."""
    if start in done or start not in needs:
        return
    path: dict[str, None] = {start: None}  # those on the way down
    ways = [iter(needs[start])]
    while ways:
        for each in ways[-1]:
            if each in path:
                ring = list(path)
                raise Cycle(ring[ring.index(each) :])
            if each in needs and each not in done:
                path[each] = None
                ways.append(iter(needs[each]))
                break
        else:
            ways.pop()
            done[path.popitem()[0]] = None
