"""The supervisor does what the model says, whatever happens in whatever order.

Hypothesis draws children, options and a story; model and supervisor live through it,
and must have written the same diary: who started, who ended, in which order.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from perdure import process
from perdure.errors import ChildError, StartError
from perdure.otp.supervision.dynamic import DynamicSupervisor
from perdure.otp.supervision.supervisor import Supervisor
from perdure.process import sleep
from perdure.testing import simulate
from tests.support.children import Family, states
from tests.support.supervisor_model import WINDOW, Model

IDS = ["a", "b", "c", "d"]
RULES = ["permanent", "transient", "temporary"]
ENDS = ["crash", "return", "shutdown"]

# Steps of two seconds in a window of five: what a step itself takes, some milliseconds, never
# decides whether a restart still counts.
PAUSE = 2.0


@dataclass(frozen=True)
class Step:
    """One line of a story."""

    verb: str
    id: str = "a"
    word: str = ""
    number: int = 0


ids = st.sampled_from(IDS)
steps = st.one_of(
    st.builds(Step, st.just("end"), ids, st.sampled_from(ENDS)),
    st.builds(Step, st.just("end"), ids, st.just("crash")),
    st.builds(Step, st.just("fail"), ids, st.just(""), st.integers(1, 4)),
    st.builds(Step, st.just("pause")),
    st.builds(Step, st.sampled_from(["terminate", "restart", "delete"]), ids),
    st.builds(Step, st.just("add"), ids, st.sampled_from(RULES)),
)
children = st.dictionaries(ids, st.sampled_from(RULES), max_size=4)
seeds = st.none() | st.integers(0, 2**16)


async def outcome_of(request: Any) -> str | None:
    try:
        await request
    except ChildError as error:
        return error.reason
    except StartError:
        return "failed"
    return None


class Story:
    """A supervisor and its model, and what happens to both."""

    def __init__(self, family: Family, sup: Supervisor, model: Model) -> None:
        self.family = family
        self.sup = sup
        self.model = model

    async def live(self, step: Step) -> None:
        model, id = self.model, step.id
        match step.verb:
            case "end":
                if id in model.running:
                    process.send(self.family.pids[id], step.word)
                model.end(id, step.word)
            case "fail":
                model.failing[id] = self.family.failing[id] = step.number
            case "pause":
                model.now += PAUSE
                await sleep(PAUSE)
            case _:
                expected, request = self.asked(step)
                assert await outcome_of(request) == expected
        await self.family.rest()

    def asked(self, step: Step) -> tuple[str | None, Any]:
        model, sup, id = self.model, self.sup, step.id
        match step.verb:
            case "terminate":
                return model.terminate(id), sup.terminate_child(id)
            case "restart":
                return model.start_again(id), sup.restart_child(id)
            case "delete":
                return model.delete(id), sup.delete_child(id)
            case _:
                return model.add(id, step.word), sup.start_child(self.family(id, restart=step.word))

    async def compare(self) -> None:
        assert self.family.diary == self.model.diary
        assert process.alive(self.sup.pid) is self.model.alive
        if self.model.alive:
            found = states(await self.sup.which_children())
            expected = {
                id: "running" if id in self.model.running else "none" for id in self.model.rules
            }
            assert list(reversed(found.items())) == list(expected.items())
            assert (await self.sup.count_children()).active == len(self.model.running)


@given(
    strategy=st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"]),
    max_restarts=st.integers(0, 5),
    rules=children,
    story=st.lists(steps, max_size=20),
    seed=seeds,
)
@example(
    strategy="one_for_all",
    max_restarts=5,
    rules={"a": "permanent", "b": "temporary", "c": "transient"},
    story=[Step("fail", "c", "", 2), Step("end", "a", "crash"), Step("end", "c", "crash")],
    seed=None,
)
def test_a_supervisor_does_what_the_model_says(
    strategy: Any, max_restarts: int, rules: dict[str, str], story: list[Step], seed: int | None
) -> None:
    async def main() -> None:
        process.set_options(trap_links=True)
        family, model = Family(), Model(strategy, max_restarts, dict(rules))
        sup = await Supervisor.start_link(
            [family(id, restart=rule) for id, rule in rules.items()],
            strategy=strategy,
            max_restarts=max_restarts,
            max_seconds=WINDOW,
        )
        model.begin()
        told = Story(family, sup, model)
        for step in story:
            if model.alive:
                await told.live(step)
                await told.compare()
        if model.alive:
            model.stop()
            await sup.stop()
        await told.compare()

    simulate(main, seed=seed)


@given(
    rules=st.lists(st.sampled_from(RULES), max_size=6),
    ends=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(ENDS)), max_size=12),
    max_restarts=st.integers(0, 6),
    seed=seeds,
)
def test_a_dynamic_supervisor_keeps_those_that_its_rules_keep(
    rules: list[str], ends: list[tuple[int, str]], max_restarts: int, seed: int | None
) -> None:
    async def main() -> None:
        process.set_options(trap_links=True)
        family = Family()
        names = [f"w{number}" for number in range(len(rules))]
        alive, restarts = dict(zip(names, rules, strict=True)), 0
        sup = await DynamicSupervisor.start_link(max_restarts=max_restarts, max_seconds="1h")
        for name in names:
            await sup.start_child(family(name, restart=alive[name]))
        for number, how in ends:
            name = f"w{number}"
            if name not in alive:
                continue
            await family.tell(name, how)
            if alive[name] == "permanent" or (alive[name] == "transient" and how == "crash"):
                restarts += 1
            else:
                del alive[name]
            if restarts > max_restarts:
                alive.clear()
            assert process.alive(sup.pid) is (restarts <= max_restarts)
            assert family.alive() == " ".join(sorted(alive))
        if process.alive(sup.pid):
            assert (await sup.count_children()).active == len(alive)

    simulate(main, seed=seed)


@given(
    strategy=st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"]),
    bursts=st.lists(st.sets(ids, min_size=1), max_size=5),
    seed=st.integers(0, 2**16),
)
def test_after_any_burst_of_deaths_all_run_again(
    strategy: Any, bursts: list[set[str]], seed: int
) -> None:
    async def main() -> None:
        family = Family()
        children = [family(id) for id in IDS]
        async with Supervisor(children, strategy=strategy, max_restarts=100) as sup:
            for burst in bursts:
                for id in sorted(burst):
                    if process.alive(family.pids[id]):
                        process.kill(family.pids[id])
                await sleep("1ms")  # the next burst comes while this one is dealt with
            await sleep(10)
            found = {info.id: info.pid for info in await sup.which_children()}
            assert found == {id: family.pids[id] for id in IDS}
            assert family.alive() == "a b c d"
            starts = [entry for entry in family.diary if entry[0] == "+"]
            assert len(starts) - len(IDS) <= 4 * sum(map(len, bursts))
        assert family.diary[-4:] == ["-d", "-c", "-b", "-a"]

    simulate(main, seed=seed)
