"""Alerts: people are told that a job needs attention, by every channel of the app."""

from perdure.base.codec import digest, encode
from perdure.engine.journal.run import Run
from perdure.engine.journal.verdict import NeedsAttention
from perdure.jobs.outbox import Notice, NoticeKind


def alerts(run: Run, kind: NoticeKind, about: str, text: str) -> tuple[Notice, ...]:
    """Return an alert for each channel.

    Its id is made of the job, the kind and `about`: however often and by whichever worker an alert
    about the same thing is written, it is sent once.
    """
    return tuple(
        Notice(
            id=digest("alert", run.job.id, kind.value, about, channel.name)[:32],
            tenant=run.job.tenant,
            kind=kind,
            job_id=run.job.id,
            channel=channel.name,
            due_at=run.now(),
            data=encode({"text": text}),
        )
        for channel in run.node.policy.channels
    )


def attention_alerts(run: Run, verdict: NeedsAttention) -> tuple[Notice, ...]:
    """Return the alerts that a job needs attention; none if people know it already."""
    if verdict.alerted:
        return ()
    # By epoch: a job that is resumed and stops again is a new matter.
    return alerts(run, NoticeKind.STUCK, str(run.epoch), verdict.failure.summary())
