"""What must always be true of a store, whatever happened to it; pure.

The SQL that finds violations has the name of the invariant, in `store/sql/invariant.sql`.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from perdure.jobs.approval import Approval, ApprovalState


class Invariant(Struct, frozen=True):
    """What is always true, and what to do where it is not."""

    name: str
    sentence: str
    advice: str


class Violation(Struct, frozen=True):
    """One violation of an invariant."""

    invariant: str
    job_id: str
    what: str


_REPORT: Final = "report it with `perdure jobs show JOB -o json`; the store itself needs no repair"

INVARIANTS: Final = tuple(
    Invariant(*each)
    for each in (
        (
            "open_effects_of_ended",
            "No effect of an ended job is still under way.",
            "ask the receiver, then `perdure effects resolve JOB NO --happened` or `--did-not`",
        ),
        (
            "open_questions_of_ended",
            "No approval of an ended job is still pending.",
            "`perdure approvals reject ID`; the answer has no effect",
        ),
        (
            "open_questions_of_ended_steps",
            "No approval of an entry that has ended is still pending.",
            "`perdure approvals reject ID`; the answer has no effect",
        ),
        (
            "open_spendings_of_ended",
            "No reservation of an ended job is open.",
            "the reserved amount counts as spent: check the bill, and report it",
        ),
        ("leases_of_ended", "An ended job has no lease and no timer.", _REPORT),
        (
            "live_without_lease",
            "A job that has not ended has a lease row.",
            "`perdure jobs cancel JOB` and submit it again; report it",
        ),
        (
            "never_due",
            "A job that no worker owns is due, or says what it waits for.",
            "`perdure jobs resume JOB`, or `perdure jobs cancel JOB`; report it",
        ),
        (
            "lost_wakeups",
            "No job waits for something that has already happened.",
            "`perdure jobs pause JOB`, then `perdure jobs resume JOB`; report it",
        ),
        (
            "unfinished_undo",
            "Everything in the undo list of a COMPENSATED job is undone.",
            "undo by hand what is named; report it",
        ),
        (
            "standing_work",
            "No effect that can be undone remains in the tree of a COMPENSATED job.",
            "undo by hand what is named; report it",
        ),
        (
            "late_entries",
            "A journal is in order: nothing follows the undo list.",
            "compare what is named with the receiver, and undo it by hand if necessary; report it",
        ),
        ("entries_twice", "An identity occurs once in the journal of a job.", _REPORT),
        ("epochs", "An epoch only grows, and a job runs only after a claim.", _REPORT),
        (
            "tenants",
            "Everything that belongs to a job has its tenant, and so do its children.",
            "find out who was able to write it; report it",
        ),
        (
            "payloads",
            "Every large payload of a journal is complete.",
            "restore the table `payload` from a backup, or fork the job before the named entry",
        ),
        (
            "references",
            "Every reference points to an existing row.",
            "find out what deleted the row: a partial restore, or a manual statement",
        ),
        (
            "done_twice",
            "An effect happens once.",
            "check with the receiver, and undo the second one by hand; report it",
        ),
        (
            "decisions",
            "An approval has enough votes, all for the action it is bound to.",
            "do not rely on this approval: cancel the job, and find out who was able to write it",
        ),
    )
)


def check_approval(approval: Approval, stored_hash: str, stored_state: str) -> Iterator[str]:
    """Yield what is wrong with a stored approval."""
    asked = approval.action.hash
    if stored_hash != asked:
        yield f"approval {approval.id} is bound to a different action than the one stored in it"
    if stored_state != approval.state.value:
        yield f"approval {approval.id} is {stored_state} in its row, {approval.state} in its data"
    if approval.state is ApprovalState.APPROVED:
        yes = {
            each.person
            for each in approval.decisions
            if each.verdict == "approve" and each.action_hash == asked
        }
        if len(yes) < approval.terms.quorum:
            counted = f"{len(yes)} of {approval.terms.quorum} people approved this action"
            yield f"approval {approval.id} is APPROVED, but {counted}"
        asked_for_it = {approval.requester, *approval.makers, *approval.requesters}
        for person in sorted(asked_for_it & yes) if approval.terms.four_eyes else ():
            yield f"approval {approval.id} was approved by {person}, who asked for it"
    elif approval.state is ApprovalState.REJECTED and not any(
        each.verdict == "reject" and each.action_hash == asked for each in approval.decisions
    ):
        yield f"approval {approval.id} is REJECTED, but nobody rejected this action"
