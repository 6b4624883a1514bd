"""Links, monitors, names and cancels against a pure model, in every order that chance finds.

Each example is one run of a state machine:
a list of rules is carried out one after the other by processes that do as they are told,
with a seeded order of everything that is ready, and after each rule the world is compared
with the model.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import Settings, process
from perdure.errors import LinkedProcessDown, NameTaken, NoProcess, ProcError, Shutdown
from perdure.process import Cancel, Event, Exit, LinkDown, MonitorRef, Pid, select, sleep
from perdure.testing import simulate
from tests.support.process_model import NORMAL, UNKNOWN, Model, Notice

FIRST_PROCESSES = 4
MOST_PROCESSES = 7
NAMES = ["a", "b"]


class Boom(Exception):
    """Crashes a puppet."""


class Leave(Exception):
    """Lets a puppet return."""


@dataclass
class Puppet:
    """A process that does what it is told, and keeps what it sees."""

    reads: bool = False
    obeys: bool = False
    answer: str = ""

    def __post_init__(self) -> None:
        self.seen: list[Event] = []

    async def live(self) -> None:
        inbox, events = process.inbox(), process.events()
        while True:
            channel, value, _ = await (select(inbox, events) if self.reads else select(inbox))
            if channel is events:
                self.seen.append(value)
                if self.obeys and isinstance(value, Cancel):
                    return
            else:
                try:
                    self.answer = spell_answer(value.payload)
                except Leave:
                    return


def spell_answer(command: Callable[[], object]) -> str:
    """Carry out a command, and say what came of it."""
    try:
        answer = command()
    except NameTaken:
        return "NameTaken"
    except ProcError as error:
        return type(error).__name__
    return "Ref" if isinstance(answer, MonitorRef) else str(answer)


def spell_reason(reason: BaseException | None) -> str:
    match reason:
        case None:
            return NORMAL
        case LinkedProcessDown():
            return f"linked: {spell_reason(reason.root)}"
        case NoProcess():
            return "NoProcess"
        case _:
            return str(reason)


class Rule(NamedTuple):
    """One step: who does what to whom, and how. One number, since each draw costs time."""

    verb: str
    number: int

    @property
    def actor(self) -> int:
        return self.number % MOST_PROCESSES

    @property
    def other(self) -> int:
        return self.number // MOST_PROCESSES % MOST_PROCESSES

    @property
    def flag(self) -> bool:
        return self.number // MOST_PROCESSES**2 % 2 == 1

    @property
    def choice(self) -> int:
        return self.number // MOST_PROCESSES**2 // 2


class Machine:
    """The real processes beside the model of them."""

    def __init__(self) -> None:
        self.model = Model()
        self.puppets: list[Puppet] = []
        self.pids: list[Pid] = []
        self.refs: list[MonitorRef] = []
        self.step = 0

    async def run(self, ties: int, rules: list[Rule]) -> None:
        await self.found(ties)
        for self.step, rule in enumerate(rules):
            await self.carry_out(rule)
            self.compare()
        for who in self.model.living:  # at the end all read what waits for them
            self.tell(who, partial(self.set_reading, who, reads=True, obeys=False))
            self.model.set_reading(who, reads=True, obeys=False)
        await self.rest()
        self.compare()
        for who in self.model.living:  # so that no time passes any more: a timer left is a leak
            process.kill(self.pids[who])

    async def found(self, ties: int) -> None:
        """Begin with some processes; each bit says who traps, and who is linked to whom."""
        for who in range(FIRST_PROCESSES):
            self.born(None, link=False, monitor=False, spawn=process.spawn)
            if ties >> who & 1:
                self.tell(who, partial(process.set_options, trap_links=True))
                self.model.set_trap(who, on=True)
        ties >>= FIRST_PROCESSES
        for bit, (who, other) in enumerate(combinations(range(FIRST_PROCESSES), 2)):
            if ties >> bit & 1:
                self.tell(who, partial(process.link, self.pids[other]))
                self.model.link(who, other)
        await self.rest()
        self.compare()

    async def carry_out(self, rule: Rule) -> None:
        living = self.model.living
        if not living:
            self.born(None, link=False, monitor=False, spawn=process.spawn)
            return
        actor, other = living[rule.actor % len(living)], rule.other % len(self.pids)
        command, expected = getattr(self, rule.verb)(actor, other, rule)
        self.tell(actor, command)
        await self.rest()
        if self.model.members[actor].alive:
            assert self.puppets[actor].answer == expected, rule

    def tell(self, who: int, command: Callable[[], object]) -> None:
        """Let a puppet do something."""
        self.puppets[who].answer = "nothing"
        process.send(self.pids[who], "do", command)

    async def rest(self) -> None:
        """Wait until nothing moves any more; then a second has passed."""
        await sleep(1)
        self.model.advance(1)

    # Rules: each gives what the puppet does, and what the model expects as its answer

    def spawn(self, actor: int, _: int, rule: Rule) -> Any:
        link, monitor = rule.flag, rule.choice % 2 == 1
        spawn = {
            (False, False): process.spawn,
            (True, False): process.spawn_linked,
            (False, True): process.spawn_monitored,
            (True, True): process.spawn_linked_monitored,
        }[link, monitor]
        if len(self.pids) >= MOST_PROCESSES:
            return bool, "False"
        return partial(self.born, actor, link=link, monitor=monitor, spawn=spawn), "None"

    def born(
        self, parent: int | None, *, link: bool, monitor: bool, spawn: Callable[..., Pid]
    ) -> None:
        self.model.spawn(parent, link=link, monitor=monitor)
        self.puppets.append(Puppet())
        self.pids.append(spawn(self.puppets[-1].live))

    def link(self, actor: int, other: int, _: Rule) -> Any:
        return partial(process.link, self.pids[other]), self.model.link(actor, other)

    def unlink(self, actor: int, other: int, rule: Rule) -> Any:
        command = partial(process.unlink, self.pids[other], flush=rule.flag)
        return command, self.model.unlink(actor, other, flush=rule.flag)

    def monitor(self, actor: int, other: int, _: Rule) -> Any:
        def command() -> MonitorRef:
            self.refs.append(process.monitor(self.pids[other]))
            return self.refs[-1]

        return command, self.model.monitor(actor, other)

    def unmonitor(self, actor: int, other: int, rule: Rule) -> Any:
        command = partial(process.unmonitor, self.pids[other], flush=rule.flag)
        return command, self.model.unmonitor(actor, other, flush=rule.flag)

    def unmonitor_ref(self, actor: int, _: int, rule: Rule) -> Any:
        if not self.refs:
            return bool, "False"
        ref = rule.choice % len(self.refs)
        command = partial(process.unmonitor, self.refs[ref], flush=rule.flag)
        return command, self.model.unmonitor_ref(actor, ref, flush=rule.flag)

    def register(self, _: int, other: int, rule: Rule) -> Any:
        name = NAMES[rule.flag]
        return partial(process.register, name, self.pids[other]), self.model.register(name, other)

    def unregister(self, _: int, __: int, rule: Rule) -> Any:
        name = NAMES[rule.flag]
        return partial(process.unregister, name), self.model.unregister(name)

    def trap(self, actor: int, _: int, rule: Rule) -> Any:
        command = partial(process.set_options, trap_links=rule.flag)
        return command, self.model.set_trap(actor, on=rule.flag)

    def attend(self, actor: int, _: int, rule: Rule) -> Any:
        reads, obeys = rule.flag, rule.choice % 2 == 1
        command = partial(self.set_reading, actor, reads=reads, obeys=obeys)
        return command, self.model.set_reading(actor, reads=reads, obeys=obeys)

    def set_reading(self, who: int, *, reads: bool, obeys: bool) -> None:
        self.puppets[who].reads, self.puppets[who].obeys = reads, obeys

    def leave(self, actor: int, _: int, rule: Rule) -> Any:
        def command() -> None:
            raise Leave

        return command, self.model.end(actor, NORMAL)

    def crash(self, actor: int, _: int, rule: Rule) -> Any:
        def command() -> None:
            raise Boom(f"boom {step}")

        step = self.step
        return command, self.model.end(actor, f"boom {step}")

    def signal(self, actor: int, other: int, rule: Rule) -> Any:
        reasons = [None, Boom(f"boom {self.step}"), Shutdown(self.step)]
        reason = reasons[rule.choice % 3]
        command = partial(process.exit, reason, self.pids[other])
        return command, self.model.exit_signal(actor, other, spell_reason(reason))

    def kill(self, _: int, other: int, __: Rule) -> Any:
        return partial(process.kill, self.pids[other]), self.model.kill(other)

    def cancel(self, actor: int, other: int, rule: Rule) -> Any:
        # No two deadlines are the same, so that each cascade has one cause.
        unique = (self.step + 1) / 1024
        timeout = [None, 0, 0.5 + unique, 1.5 + unique, 4.5 + unique][rule.choice % 5]
        command = partial(process.cancel, self.pids[other], timeout)
        return command, self.model.cancel(actor, other, timeout)

    # Comparison

    def compare(self) -> None:
        model = self.model
        living = [who for who, pid in enumerate(self.pids) if process.alive(pid)]
        assert living == model.living
        names = {name: process.whereis(name) for name in NAMES}
        assert names == {
            name: self.pids[model.names[name]] if name in model.names else None for name in NAMES
        }
        number = {pid: n for n, pid in enumerate(self.pids)}
        for who in living:
            self.compare_one(who, number)

    def compare_one(self, who: int, number: dict[Pid, int]) -> None:
        info, member = process.info(self.pids[who]), self.model.members[who]
        monitors = self.model.monitors
        assert info.trap_links is member.traps
        assert {number[pid] for pid in info.links} == self.model.linked_with(who)
        assert Counter(number[pid] for pid in info.monitors) == Counter(
            m.target for m in monitors if m.watcher == who
        )
        assert Counter(number[pid] for pid in info.monitored_by) == Counter(
            m.watcher for m in monitors if m.target == who
        )
        assert info.mailbox == len(member.waiting)
        seen = [self.spell(event) for event in self.puppets[who].seen]
        assert Counter(seen) == Counter(member.seen)

    def spell(self, event: Event) -> Notice:
        sender = self.pids.index(event.sender) if event.sender is not None else None
        match event:
            case Exit():
                ref = self.refs.index(event.ref) if event.ref in self.refs else UNKNOWN
                return ("exit", sender, ref, spell_reason(event.result.error))
            case LinkDown():
                return ("link_down", sender, spell_reason(event.error))
            case Cancel():
                return ("cancel", sender, event.deadline)


VERBS = [
    "spawn",
    "link",
    "unlink",
    "monitor",
    "unmonitor",
    "unmonitor_ref",
    "register",
    "unregister",
    "trap",
    "attend",
    "leave",
    "crash",
    "signal",
    "kill",
    "cancel",
]
TIES = FIRST_PROCESSES * (FIRST_PROCESSES + 1) // 2  # a bit for each trap and each link

RULES = st.builds(
    Rule,
    st.sampled_from(["spawn", "link", "monitor", "trap", "attend", *VERBS]),
    st.integers(0, MOST_PROCESSES**2 * 2 * 10 - 1),
)

EXAMPLES = min(20 * settings().max_examples, 10_000)  # 2,000 in an everyday run


@pytest.mark.timeout(300)
@settings(max_examples=EXAMPLES)
@given(
    seed=st.integers(0, 2**16),
    ties=st.integers(0, 2**TIES - 1),
    rules=st.lists(RULES, min_size=6, max_size=16),
)
def test_the_state_machine_of_ties_and_ends_does_as_its_model(
    seed: int, ties: int, rules: list[Rule]
) -> None:
    quiet = Settings(turn_steps=1, report_crashes=False)
    simulate(Machine().run, ties, rules, seed=seed, settings=quiet)
