"""The verbs of the store: each is a function over a session, and one transaction.

Nothing here knows which database it runs on; `store.Store` gives the verbs their names.
"""

from perdure.store.verbs import (
    answer,
    approval,
    audit,
    browse,
    budget,
    bundle,
    claim,
    command,
    credential,
    effect,
    fleet,
    gauges,
    insight,
    listing,
    outbox,
    output,
    read,
    saved_view,
    schedule,
    submit,
    worker_command,
    write,
)

__all__ = [
    "answer",
    "approval",
    "audit",
    "browse",
    "budget",
    "bundle",
    "claim",
    "command",
    "credential",
    "effect",
    "fleet",
    "gauges",
    "insight",
    "listing",
    "outbox",
    "output",
    "read",
    "saved_view",
    "schedule",
    "submit",
    "worker_command",
    "write",
]
