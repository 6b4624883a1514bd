"""Alerts: people are notified that a job needs attention, through every channel of the app."""

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.base.codec import digest, encode
from perdure.engine.journal.run import Run
from perdure.engine.journal.verdict import NeedsAttention
from perdure.jobs.failure import Failure
from perdure.jobs.outbox import Notice, NoticeKind, alert_key
from perdure.notify.people import ApprovalChannel


def alerts(run: Run, kind: NoticeKind, about: str, text: str) -> tuple[Notice, ...]:
    """Return an alert for each channel.

    Its id is derived from the job, the kind and `about`: an alert about the same thing is sent
    once, however often and by whichever worker it is written.
    """
    first = Notice(
        id=about,
        tenant=run.job.tenant,
        kind=kind,
        job_id=run.job.id,
        channel="",
        data=encode({"text": text}),
    )
    policy = run.node.policy
    return for_channels(policy.all_channels, first, alerts=policy.alerts)


def undo_alerts(run: Run, undo: str, failure: Failure) -> tuple[Notice, ...]:
    """Return the alerts that something could not be undone, for the write that records it.

    By epoch: an undo that a person has retried, and that fails again, is a new reason to alert.
    """
    about, text = f"{undo} {run.epoch}", f"{undo} could not be undone: {failure.summary()}"
    return alerts(run, NoticeKind.UNDO_FAILED, about, text)


def for_channels(
    channels: Sequence[ApprovalChannel], alert: Notice, *, alerts: Sequence[ApprovalChannel]
) -> tuple[Notice, ...]:
    """Return an alert for each channel; its id says what it is about.

    Args:
        channels: Those that get it.
        alert: The alert, without a channel.
        alerts: Those of them that also hear of its acknowledgement and resolution.
    """
    about, kind, job_id = alert.id, alert.kind, alert.job_id
    key = alert_key(job_id, kind, about)
    return tuple(
        replace(
            alert,
            id=digest("alert", job_id, kind.value, about, channel.name)[:32],
            channel=channel.name,
            alert=key if channel in alerts else "",
        )
        for channel in channels
    )


def attention_alerts(run: Run, verdict: NeedsAttention) -> tuple[Notice, ...]:
    """Return the alerts that a job needs attention; none for people who know it already."""
    if verdict.alerted:
        return ()
    # By epoch: a job that is resumed and stops again is a new reason to alert.
    text = verdict.failure.summary()
    found = alerts(run, NoticeKind.NEEDS_ATTENTION, str(run.epoch), text)
    # The other channels ask whether it is to be undone, and that says it all.
    return tuple(each for each in found if each.alert) if verdict.asks else found
