"""What must always be true of a store, whatever happened to it; pure.

The SQL that finds what breaks a rule has the rule's name, in `store/sql/invariant.sql`.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from perdure.jobs.approval import Approval, ApprovalState


class Invariant(Struct, frozen=True):
    """A rule: what is true, and what to do where it is not."""

    name: str
    sentence: str
    advice: str


class Violation(Struct, frozen=True):
    """One thing that breaks a rule."""

    invariant: str
    job_id: str
    what: str


_REPORT: Final = "report it with `perdure jobs show JOB -o json`; the store itself needs no repair"

INVARIANTS: Final = tuple(
    Invariant(*each)
    for each in (
        (
            "open_effects_of_ended",
            "No effect of a job that has ended is still called under way.",
            "look at the receiver, then `perdure effects resolve JOB NO --happened` or `--did-not`",
        ),
        (
            "open_questions_of_ended",
            "No question of a job that has ended waits for an answer.",
            "`perdure approvals reject ID`: nothing will be done, whatever the answer",
        ),
        (
            "open_spendings_of_ended",
            "No spending of a job that has ended is open.",
            "what is set aside counts as spent: check the bill, and report it",
        ),
        ("leases_of_ended", "A job that has ended has no lease and no timer.", _REPORT),
        (
            "live_without_lease",
            "A job that has not ended has a lease.",
            "`perdure jobs cancel JOB`, and submit it again; report it",
        ),
        (
            "stuck",
            "A job that nobody works on is due, or says what it waits for or needs.",
            "`perdure jobs resume JOB`, or `perdure jobs cancel JOB`; report it",
        ),
        (
            "lost_wakeups",
            "A job does not wait for what has happened already.",
            "`perdure jobs pause JOB`, then `perdure jobs resume JOB`: it looks again; report it",
        ),
        (
            "unfinished_undo",
            "Everything in the list of a job that is COMPENSATED is undone.",
            "undo by hand what is named; report it",
        ),
        (
            "standing_work",
            "Nothing that can be undone stands in the tree of a job that is COMPENSATED.",
            "undo by hand what is named; report it",
        ),
        (
            "late_entries",
            "A journal is in order: nothing is behind the list of what to undo.",
            "compare what is named with the receiver, undo it by hand if need be; report it",
        ),
        ("entries_twice", "An identity is once in the journal of a job.", _REPORT),
        ("epochs", "An epoch only grows, and only a claim lets a job run.", _REPORT),
        (
            "tenants",
            "All that belongs to a job is of the tenant of the job, and so are its children.",
            "find out who could write it; report it",
        ),
        (
            "references",
            "What is referred to is there.",
            "find out what deleted it: a restore of some tables, or a statement by hand",
        ),
        (
            "done_twice",
            "An effect is done once.",
            "look at the receiver, and undo the second one by hand; report it",
        ),
        (
            "decisions",
            "A yes is about the very action that is approved, by as many people as it takes.",
            "do not rely on this approval: cancel the job, and find out who could write it",
        ),
    )
)


def check_approval(approval: Approval, stored_hash: str, stored_state: str) -> Iterator[str]:
    """Say what is wrong with an approval."""
    asked = approval.action.hash
    if stored_hash != asked:
        yield f"approval {approval.id} is bound to another action than the one that it holds"
    if stored_state != approval.state.value:
        yield f"approval {approval.id} is {stored_state} in its row and {approval.state} in itself"
    if approval.state is ApprovalState.APPROVED:
        yes = {
            each.person
            for each in approval.decisions
            if each.verdict == "approve" and each.action_hash == asked
        }
        if len(yes) < approval.terms.quorum:
            wanted = f"{len(yes)} of {approval.terms.quorum} needed people said yes to this action"
            yield f"approval {approval.id} is APPROVED and {wanted}"
        if approval.terms.four_eyes and approval.requester in yes:
            yield f"approval {approval.id} was approved by {approval.requester}, who asked for it"
    elif approval.state is ApprovalState.REJECTED and not any(
        each.verdict == "reject" and each.action_hash == asked for each in approval.decisions
    ):
        yield f"approval {approval.id} is REJECTED and nobody said no to this action"
