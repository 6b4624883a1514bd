"""Pages of jobs with what their rows need."""

from perdure.jobs.budget import Budget
from perdure.jobs.effect import Effect, EffectState, Place
from perdure.jobs.model import JobQuery, WorkerRow
from perdure.jobs.state import JobState, StepState
from perdure.store.store import Store
from tests.support.store import GONE, aside, claim_one, ends, entry, new_job, started, write_of

SILENT = 90.0


async def test_a_page_has_the_last_entries_of_each_job_without_their_payloads(store: Store) -> None:
    claim = await started(store)
    entries = [entry(seq) for seq in range(30)]
    entries.append(entry(30, StepState.RUNNING, attempt=2))
    await store.write(write_of(claim, *entries))
    await store.submit([new_job("b")])
    facts = {each.job.id: each for each in (await store.listed_jobs(JobQuery(), SILENT)).facts}
    assert [each.seq for each in facts["a"].latest] == list(range(11, 31))
    assert (facts["a"].latest[-1].state, facts["a"].latest[-1].attempt) == (StepState.RUNNING, 2)
    assert facts["b"].latest == ()


async def test_a_row_has_the_budget_of_its_tree_and_what_is_in_doubt(store: Store) -> None:
    claim = await started(store)
    assert claim.job.owner is not None
    lines = [_effect(number, EffectState.IN_DOUBT) for number in (1, 2)]
    lines.append(_effect(3, EffectState.DONE))
    await store.write(write_of(claim, entry(0, StepState.RUNNING), effects=tuple(lines)))
    await store.reserve(aside(claim, "a/x/1", 2.5), _no_budget())
    facts = await store.listed_job("a", SILENT)
    assert facts is not None
    assert facts.effects_in_doubt == 2
    assert facts.budget is not None
    assert facts.budget.gone.usd == 2.5


async def test_a_lease_that_ran_out_makes_a_job_stale(store: Store) -> None:
    await store.submit([new_job("a"), new_job("b")])
    await claim_one(store, lease=GONE)
    await claim_one(store)
    facts = (await store.listed_jobs(JobQuery(), SILENT)).facts
    assert {each.job.id: each.stale for each in facts} == {"a": True, "b": False}


async def test_a_silent_worker_makes_its_jobs_stale(store: Store) -> None:
    await started(store)
    await store.heartbeat("w1", b"{}")
    (worker,) = await store.workers()
    assert isinstance(worker, WorkerRow)
    fresh, silent = await store.listed_job("a", SILENT), await store.listed_job("a", -1.0)
    assert fresh is not None
    assert silent is not None
    assert (fresh.stale, silent.stale) == (False, True)


async def test_an_ended_job_needs_no_entries(store: Store) -> None:
    claim = await started(store)
    await store.write(write_of(claim, entry(0), job=ends(JobState.COMPLETED, result=b"1")))
    facts = await store.listed_job("a", SILENT)
    assert facts is not None
    assert facts.latest == ()
    assert await store.listed_job("none", SILENT) is None


def _no_budget() -> Budget:
    return Budget(root="a", began_at=1.0)


def _effect(number: int, state: EffectState) -> Effect:
    return Effect(
        job_id="a",
        tenant="acme",
        no=number,
        key=f"k{number}",
        place=Place("step#0", number),
        kind="call",
        target="shop",
        state=state,
        called_at=1.0,
    )
