"""Alerts: people are notified that a job needs attention, through every channel of the app."""

from perdure.base.codec import digest, encode
from perdure.engine.journal.run import Run
from perdure.engine.journal.verdict import NeedsAttention
from perdure.jobs.outbox import Notice, NoticeKind


def alerts(run: Run, kind: NoticeKind, about: str, text: str) -> tuple[Notice, ...]:
    """Return an alert for each channel.

    Its id is derived from the job, the kind and `about`: an alert about the same thing is sent
    once, however often and by whichever worker it is written.
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
    """Return the alerts that a job needs attention; none if people were notified already."""
    if verdict.alerted:
        return ()
    # By epoch: a job that is resumed and stops again is a new reason to alert.
    return alerts(run, NoticeKind.STUCK, str(run.epoch), verdict.failure.summary())
