"""What has ended may run again: a person retries it, or what is above it is undone."""

from itertools import product

import pytest

from perdure.base.errors import IllegalTransition
from perdure.jobs.model import Command, EntryKind, JobChange, JournalEntry
from perdure.jobs.state import ENDED, JobState, StepState
from perdure.store.store import Store
from perdure.store.verbs.command import _DECISIONS  # pyright: ignore[reportPrivateUsage]
from tests.support.store import claim_one, ends, entry, new_job, started, write_of

J = JobState
BY_PEOPLE = sorted({*_DECISIONS} - {"compensate_child"})


async def family(store: Store, parent: JobState, child: JobState) -> None:
    """Make a parent and a child that have ended so."""
    claim = await started(store, "parent")
    place = JournalEntry(
        seq=0, id="child:work#1", kind=EntryKind.CHILD, name="child:work", state=StepState.PENDING
    )
    work = new_job("child", parent="parent", parent_seq=0)
    await store.write(write_of(claim, place, children=(work,)))
    below = await claim_one(store)
    for each, state in ((below, child), (claim, parent)):
        failed = entry(5, StepState.FAILED, id="fail#1")
        await store.write(write_of(each, failed))
        if state is J.COMPENSATED:  # from COMPENSATING alone
            await store.write(write_of(each, job=JobChange(state=J.COMPENSATING)))
        await store.write(write_of(each, job=ends(state, error=b'{"message": "no"}')))


@pytest.mark.parametrize(("parent", "child"), sorted(product(ENDED, ENDED)))
async def test_what_a_command_lets_run_again_was_known_to_be_able_to(
    store: Store, parent: JobState, child: JobState
) -> None:
    await family(store, parent, child)
    known = await store.may_run_again(["parent", "child", "nobody"])
    for job_id, action in product(("child", "parent"), BY_PEOPLE):
        asked = Command(job_id=job_id, action=action, actor="kim", seq=5)
        try:
            await store.command(asked)
        except IllegalTransition:
            continue
        assert job_id in known, action
        # Undoing the parent undoes the child.
        assert "child" in known, action


async def test_a_tree_in_which_all_is_done_or_undone_is_over(store: Store) -> None:
    await family(store, J.COMPLETED, J.COMPENSATED)

    assert await store.may_run_again(["parent", "child"]) == set()


async def test_what_has_not_ended_may_run(store: Store) -> None:
    await store.submit([new_job("a")])

    assert await store.may_run_again(["a", "nobody"]) == {"a"}
