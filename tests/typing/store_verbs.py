"""What type checkers know of the store's verbs; checked by them, never run."""

from typing import assert_type

from perdure.jobs.approval import Approval, ApprovalLink, ApprovalState, Refusal, Vote
from perdure.jobs.model import Claim, Job, NewJob, QueueLimit, Submitted, Write
from perdure.store.store import Store


async def results_are_those_of_the_verbs(store: Store, vote: Vote, job: NewJob) -> None:
    """The types of a verb's function are those of the store's method."""
    assert_type(await store.job("id"), Job | None)
    assert_type(await store.submit([job], actor="kim"), list[Submitted])
    assert_type(await store.vote("id", vote), Approval | Refusal)
    assert_type(await store.link("id"), tuple[ApprovalLink, Approval] | None)
    assert_type(await store.is_being_undone("id"), bool)
    assert_type(await store.claim("me", {"default": QueueLimit()}, 1, 60.0), list[Claim])
    assert_type(await store.durability(), dict[str, str])
    assert_type(await store.now(), float)


async def arguments_are_those_of_the_verbs(store: Store, write: Write) -> None:
    """A session is not among them, defaults are, and keywords have their names."""
    await store.approvals(ApprovalState.PENDING, job="id", limit=3)
    await store.pause_schedule("acme", "nightly", None, paused=True)
    await store.write(write, alone=True)
    assert_type(store.write_soon(write, print, alone=True), bool)
