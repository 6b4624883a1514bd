"""What links, monitors, names and cancels should do: a pure model, without any process.

Members are numbers.
A reason is a text: "normal", "shutdown …", "killed …", the text of an error, or
"linked: " and the first cause.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

Notice = tuple[object, ...]  # an event, as plain values

NORMAL = "normal"
UNKNOWN = "?"  # the ref of a monitor that was made at birth: nobody has seen it yet


def spread(reason: str) -> str:
    """Give the reason of who dies by a link to one that died of `reason`."""
    return reason if reason.startswith(("shutdown", "linked: ")) else f"linked: {reason}"


@dataclass
class Member:
    """What is known of one process."""

    alive: bool = True
    traps: bool = False
    reads: bool = False  # takes its events as they come
    obeys: bool = False  # ends when it reads a CANCEL
    deadline: float | None = None
    waiting: list[Notice] = field(default_factory=list[Notice])
    seen: list[Notice] = field(default_factory=list[Notice])


@dataclass
class Monitor:
    """One watches another; `ref` is a number, or UNKNOWN."""

    watcher: int
    target: int
    ref: object


class Model:
    """All processes, and how they are tied."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.links: set[frozenset[int]] = set()
        self.monitors: list[Monitor] = []
        self.names: dict[str, int] = {}
        self.now = 0.0
        self._refs = 0

    @property
    def living(self) -> list[int]:
        return [who for who, member in enumerate(self.members) if member.alive]

    def linked_with(self, who: int) -> set[int]:
        return {peer for pair in self.links if who in pair for peer in pair - {who}}

    # Ties

    def spawn(self, parent: int | None, *, link: bool, monitor: bool) -> None:
        child = len(self.members)
        self.members.append(Member())
        if parent is not None and link:
            self.links.add(frozenset((parent, child)))
        if parent is not None and monitor:
            self.monitors.append(Monitor(parent, child, UNKNOWN))

    def link(self, who: int, other: int) -> str:
        if not self.members[other].alive:
            return "NoProcess"
        if who != other:
            self.links.add(frozenset((who, other)))
        return "None"

    def unlink(self, who: int, other: int, *, flush: bool) -> str:
        self.links.discard(frozenset((who, other)))
        if flush:
            self._flush(who, lambda notice: notice[:2] == ("link_down", other))
        return "None"

    def monitor(self, who: int, other: int) -> str:
        ref, self._refs = self._refs, self._refs + 1
        if self.members[other].alive:
            self.monitors.append(Monitor(who, other, ref))
        else:
            self._notify(who, ("exit", other, ref, "NoProcess"))
        return "Ref"

    def unmonitor_ref(self, who: int, ref: int, *, flush: bool) -> str:
        self.monitors = [m for m in self.monitors if (m.watcher, m.ref) != (who, ref)]
        if flush:
            self._flush(who, lambda notice: notice[0] == "exit" and notice[2] == ref)
        return "None"

    def unmonitor(self, who: int, other: int, *, flush: bool) -> str:
        self.monitors = [m for m in self.monitors if (m.watcher, m.target) != (who, other)]
        if flush:
            self._flush(who, lambda notice: notice[:2] == ("exit", other))
        return "None"

    # Names and options

    def register(self, name: str, other: int) -> str:
        if not self.members[other].alive:
            return "NoProcess"
        if self.names.setdefault(name, other) != other:
            return "NameTaken"
        return "None"

    def unregister(self, name: str) -> str:
        return str(self.names.pop(name, None) is not None)

    def set_trap(self, who: int, *, on: bool) -> str:
        self.members[who].traps = on
        return "None"

    def set_reading(self, who: int, *, reads: bool, obeys: bool) -> str:
        member = self.members[who]
        member.reads, member.obeys = reads, obeys
        if reads:
            waiting, member.waiting = member.waiting, []
            for notice in waiting:
                self._notify(who, notice)
        return "None"

    # Ends

    def cancel(self, who: int, other: int, timeout: float | None) -> str:
        member = self.members[other]
        if not member.alive:
            return "NoProcess"
        deadline = None if timeout is None else self.now + timeout
        if timeout == 0:
            self.end(other, "killed: cancel timeout")
        elif deadline is not None:
            member.deadline = min(deadline, member.deadline or deadline)
        self._notify(other, ("cancel", who, deadline))
        return "None"

    def kill(self, other: int) -> str:
        return self.end(other, "killed")

    def exit_signal(self, who: int, other: int, reason: str) -> str:
        if not self.members[other].alive:
            return "NoProcess"
        if who == other:
            return self.end(other, reason)
        if reason == NORMAL:
            return "None"
        if self.members[other].traps:
            self._notify(other, ("link_down", who, reason))
            return "None"
        return self.end(other, reason)

    def end(self, first: int, reason: str) -> str:
        """Let one end, and all whom its end takes along."""
        if not self.members[first].alive:
            return "NoProcess"
        dying = deque([(first, reason)])
        while dying:
            who, why = dying.popleft()
            if self.members[who].alive:
                dying.extend(self._bury(who, why))
        return "None"

    def _bury(self, who: int, why: str) -> list[tuple[int, str]]:
        self.members[who].alive = False
        self.members[who].deadline = None
        self.names = {name: holder for name, holder in self.names.items() if holder != who}
        self.monitors = [m for m in self.monitors if m.watcher != who]
        for monitor in [m for m in self.monitors if m.target == who]:
            self.monitors.remove(monitor)
            self._notify(monitor.watcher, ("exit", who, monitor.ref, why))
        peers = self.linked_with(who)
        self.links = {pair for pair in self.links if who not in pair}
        if why == NORMAL:
            return []
        for peer in peers:
            if self.members[peer].traps:
                self._notify(peer, ("link_down", who, why))
        return [(peer, spread(why)) for peer in peers if not self.members[peer].traps]

    def advance(self, seconds: float) -> None:
        """Let time pass: whoever reaches its deadline is killed."""
        end = self.now + seconds
        while due := [m.deadline for m in self.members if m.deadline and m.deadline <= end]:
            self.now = min(due)
            for who, member in enumerate(self.members):
                if member.deadline == self.now:
                    self.end(who, "killed: cancel timeout")
        self.now = end

    # Events

    def _notify(self, who: int, notice: Notice) -> None:
        member = self.members[who]
        if not member.alive:
            return
        if not member.reads:
            member.waiting.append(notice)
            return
        member.seen.append(notice)
        if member.obeys and notice[0] == "cancel":
            self.end(who, NORMAL)

    def _flush(self, who: int, unwanted: Callable[[Notice], bool]) -> None:
        member = self.members[who]
        member.waiting = [notice for notice in member.waiting if not unwanted(notice)]
