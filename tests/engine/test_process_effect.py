"""Effects of steps in other OS processes: what is written is written before the first byte."""

from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.app import App
from perdure.approvals import Person
from perdure.base.errors import JobFailed
from perdure.engine.handle import Handle
from perdure.engine.run.context import JobContext
from perdure.jobs.state import JobState
from tests.support import process_effects
from tests.support.engine import durable, until

LIMIT = "30s"


async def submitted(app: App, name: str, *args: object) -> Handle[Any]:
    """Submit a job of one such step."""
    app.include(process_effects.steps)
    step = app.find_step(name)

    @app.job
    async def job(ctx: JobContext) -> object:
        return await step(*args)

    return await app.submit(job(), tenant="acme", user="lee")


async def states(handle: Handle[Any]) -> list[str]:
    return [line.state for line in await handle.effects()]


def test_the_intent_is_durable_before_the_call(url: str) -> None:
    @durable
    async def case(app: App) -> None:
        handle = await submitted(app, "looks_first", url)
        async with app.running():
            assert await handle.result(LIMIT) == ["INTENT True"]
        (line,) = await handle.effects()
        assert (line.state, line.proof) == ("DONE", "answer")
        assert b"[removed]" in (line.details or b"")

    case(url)


# Where the OS process is killed, what is said of the receiver, and how often it is called then.
POINTS = [
    ("pay", "before the intent", "ask", 1),
    ("pay", "before the call", "replay", 1),
    ("pay", "before the call", "query", 1),
    ("pay", "after the call", "replay", 2),
    ("pay", "after the call", "query", 1),
    ("pay", "after the result", "ask", 1),
    ("pays_plainly", "after the call", "query", 1),
    ("pays_plainly", "after the result", "ask", 1),
]


@pytest.mark.parametrize(("name", "dies_at", "policy", "times"), POINTS)
def test_a_killed_os_process_leaves_what_can_be_resolved(
    url: str, tmp_path: Path, name: str, dies_at: str, policy: str, times: int
) -> None:
    @durable
    async def case(app: App) -> None:
        handle = await submitted(app, name, str(tmp_path), dies_at, policy)
        async with app.running():
            got = await handle.result(LIMIT)
        keys = process_effects.calls(tmp_path)
        asked = dies_at == "after the call" and policy == "query"
        assert got == ("asked" if asked else f"paid {times}")
        assert (len(keys), len(set(keys))) == (times, 1)
        assert await states(handle) == ["DONE"]
        assert (tmp_path / "died").exists()

    case(url)


@pytest.mark.parametrize(("dies_at", "times"), [("before the call", 0), ("after the call", 1)])
def test_of_a_receiver_that_cannot_be_asked_a_person_must_tell(
    url: str, tmp_path: Path, dies_at: str, times: int
) -> None:
    @durable
    async def case(app: App) -> None:
        handle = await submitted(app, "pay", str(tmp_path), dies_at, "ask")
        async with app.running():
            await until(app, handle.id, JobState.NEEDS_ATTENTION)
            assert len(process_effects.calls(tmp_path)) == times
            assert await states(handle) == ["IN_DOUBT"]
            await handle.resolve(1, "happened", result="seen", by="kim")
            assert await handle.result(LIMIT) == "seen"
        assert len(process_effects.calls(tmp_path)) == times

    case(url)


@durable
async def test_a_refusal_is_proof(app: App) -> None:
    handle = await submitted(app, "refused_at_first")
    async with app.running():
        assert await handle.result(LIMIT) == "done"
    assert await states(handle) == ["FAILED", "DONE"]


@durable
async def test_a_doubt_cannot_be_swallowed(app: App) -> None:
    handle = await submitted(app, "swallows")
    async with app.running():
        await until(app, handle.id, JobState.NEEDS_ATTENTION)
    assert await states(handle) == ["IN_DOUBT"]
    assert b"TimeoutError: no answer" in ((await handle.job()).error or b"")


@pytest.mark.parametrize("dies", [False, True])
def test_what_a_checkpoint_would_make_alike_is_refused(
    url: str, tmp_path: Path, dies: bool
) -> None:
    @durable
    async def case(app: App) -> None:
        handle = await submitted(app, "alike", *([str(tmp_path)] if dies else []))
        async with app.running():
            with pytest.raises(JobFailed, match="target of its own"):
                await handle.result(LIMIT)
        assert await states(handle) == ["DONE"]

    case(url)


def test_items_are_done_once(url: str, tmp_path: Path) -> None:
    @durable
    async def case(app: App) -> None:
        handle = await submitted(app, "goes_through", str(tmp_path))
        async with app.running():
            await handle.result(LIMIT)
        keys = process_effects.calls(tmp_path)
        assert (len(keys), len(set(keys))) == (3, 3)

    case(url)


@durable
async def test_what_was_recorded_by_hand_is_known(app: App) -> None:
    handle = await submitted(app, "by_hand")
    async with app.running():
        assert await handle.result(LIMIT) == [False, True]


def test_a_person_is_asked_and_no_process_waits_meanwhile(url: str, tmp_path: Path) -> None:
    @durable
    async def case(app: App) -> None:
        boss = Person(id="ann", tenant="acme", roles=frozenset({"approver"}))
        handle = await submitted(app, "asks", str(tmp_path))
        async with app.running():
            await until(app, handle.id, JobState.WAITING)
            (asked,) = await app.approvals()
            assert asked.title == "Send it?"
            await app.decide(asked, "approve", by=boss)
            assert await handle.result(LIMIT) is True
        assert len(process_effects.calls(tmp_path)) == 2  # it was left, and begun again

    case(url)


def test_every_question_has_an_answer_of_its_own(url: str, tmp_path: Path) -> None:
    @durable
    async def case(app: App) -> None:
        boss = Person(id="ann", tenant="acme", roles=frozenset({"approver"}))
        handle = await submitted(app, "asks_of_each", str(tmp_path))
        async with app.running():
            for number in range(3):
                await until(app, handle.id, JobState.WAITING)
                (asked,) = await app.approvals()
                assert len(process_effects.calls(tmp_path)) == number
                await app.decide(asked, "approve", by=boss)
                while len(process_effects.calls(tmp_path)) == number:
                    await perdure.process.sleep("5ms")
            await handle.result(LIMIT)
        assert process_effects.calls(tmp_path) == ["a", "b", "b"]

    case(url)


@pytest.mark.parametrize("name", ["spends", "spends_plainly"])
def test_every_attempt_spends_of_the_budget_of_its_job(url: str, name: str) -> None:
    @durable
    async def case(app: App) -> None:
        handle = await submitted(app, name)
        async with app.running():
            assert await handle.result(LIMIT) == "spent"
        budget = await handle.budget()
        assert budget is not None
        assert (budget.spent.usd, budget.reserved) == (0.5, {})

    case(url)


@durable
async def test_an_effect_brings_its_undo_along(app: App) -> None:
    handle = await submitted(app, "pays_and_fails")
    async with app.running():
        assert await handle.wait(LIMIT) is JobState.COMPENSATED
    undone = next(entry for entry in await handle.journal() if entry.id.startswith("undo:"))
    assert undone.output == b'"ch_1 sorry"'
