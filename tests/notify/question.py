"""The approval that these tests ask about."""

from msgspec.structs import replace

from perdure.jobs.approval import Action, Approval, Edit
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.jobs.risk import RiskLevel

ACTION = Action(tenant="acme", job_id="job-1", step="pay#1", input=b'{"amount":120}')
ASKED = Approval(
    id="approval-1",
    tenant="acme",
    job_id="job-1",
    step="pay#1",
    action=ACTION,
    title="pay the invoice",
    shown=b'{"amount":120,"to":["kim","lee"]}',
    risk=RiskLevel.MEDIUM,
    reasons=("it is financial",),
    requester="rob",
    created_at=1_800_000_000.0,
)
NOTICE = Notice(
    id="notice-1",
    tenant="acme",
    kind=NoticeKind.ASKED,
    job_id="job-1",
    approval_id="approval-1",
    channel="any",
    due_at=ASKED.created_at,
)
EDITED = replace(
    ASKED,
    action=replace(ACTION, input=b'{"amount":900,"note":"x"}', revision=1),
    shown=b'{"amount":900,"note":"x"}',
    edits=(Edit(person="bob", at=ASKED.created_at, before=b'{"amount":120,"to":["kim"]}'),),
)
