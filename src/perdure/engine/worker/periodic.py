"""The periodic work of a worker, and the one loop that all of it runs in.

`every` calls a function periodically, for ever. Everything that the parts of a worker have in
common about that is here: how long to pause, how to be woken early, and what to do while the store
fails. A duty is therefore an ordinary function that does its work once; it raises `StoreError` if
the store fails, and need not think about the next time.

This file contains pruning, approval timers, the stuck watch and the outbox sender. Larger duties
have their own files (`scheduler`, `reaper`, `lease_renewer`, `producer`), and run in the same loop.
What has a time in the store is woken by the `agenda` when it is due, and does not poll.
Every worker does all of them: there is no leader. Each duty is therefore written so that any number
of workers may do it at the same moment; the store lets one of them win.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias
from weakref import WeakSet

from perdure.base.codec import digest, encode
from perdure.base.errors import LeaseLost, StoreError
from perdure.base.retry import Retry, idle
from perdure.engine import events
from perdure.engine.journal.run import Run
from perdure.engine.people.attention import alerts
from perdure.engine.worker.node import WorkerNode
from perdure.jobs.approval import Approval
from perdure.jobs.model import JobEvent, Write
from perdure.jobs.outbox import Notice, NoticeKind, NoticeState
from perdure.notify.people import ApprovalChannel
from perdure.otp.task_supervisor import TaskSupervisor

_log = logging.getLogger("perdure.worker")

# The loop

# Pauses while the store fails. They grow, so that an overloaded store can recover, and they are
# randomised, so that the workers of a fleet do not all come back at the same moment.
_OUTAGE_PAUSES: Final = Retry(initial_delay="250ms", max_delay="5s", jitter=0.5)
_WARN_EVERY: Final = 60.0

# Does the work once. Returns the number of seconds until the next time; None: the usual pause.
Work: TypeAlias = Callable[[], Awaitable[float | None]]


def _ignore() -> None:
    pass


async def every(
    interval: float,
    work: Work,
    *,
    what: str,
    wake: asyncio.Event | None = None,
    on_failure: Callable[[], None] = _ignore,
) -> None:
    """Do some work now, and again after each pause, for ever; it may be cancelled at any time.

    While the store fails, the pauses are those of an outage; without a `wake`, never shorter than
    the interval. Then no wake-up cuts them short: a hint that there is work changes nothing if no
    work can be done. Any other exception ends the loop, and the worker's supervisor starts it
    again.

    Args:
        interval: Seconds between two rounds.
        work: Does one round.
        what: What is done, for the log: "deleting old jobs".
        wake: Set to run the next round at once.
        on_failure: Called after each round that the store failed in.
    """
    outage = Outage(what, asyncio.get_running_loop().time)
    while True:
        if wake is not None:
            wake.clear()  # before the work, so that a wake-up during it is not lost
        try:
            wanted = await work()
        except StoreError as error:
            on_failure()
            outage.failed(error)
            # What something wakes may have an interval of an hour, which is no pause for an outage.
            await idle(outage.delay if wake is not None else max(interval, outage.delay))
        else:
            outage.over()
            await idle(interval if wanted is None else wanted, wake)


class Outage:
    """Counts the failures of one duty; logs the first, then one a minute, and the recovery."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self._what = what
        self._clock = clock
        self._failures = 0
        self._warned_at: float | None = None
        self._is_announced = False  # a warning was logged, and the recovery was not

    @property
    def delay(self) -> float:
        """The seconds to pause before the store is asked again; 0 while it answers."""
        return _OUTAGE_PAUSES.delay(self._failures)

    def failed(self, error: StoreError) -> None:
        """Count a failure."""
        self._failures += 1
        now = self._clock()
        if self._warned_at is None or now - self._warned_at >= _WARN_EVERY:
            self._warned_at, self._is_announced = now, True
            _log.warning("%s: %s; retrying with growing pauses", self._what, error)

    def over(self) -> None:
        """Record that the store works again."""
        if self._is_announced:
            _log.warning("%s: the store works again", self._what)
        self._failures, self._is_announced = 0, False


# Pruning

_PRUNE_EVERY, _PRUNE_BATCH = 60.0, 500


async def prune(node: WorkerNode) -> None:
    """Delete ended jobs that are older than `WorkerSettings.keep`; runs for ever."""
    await every(_PRUNE_EVERY, partial(_prune, node), what="deleting old jobs")


async def _prune(node: WorkerNode) -> None:
    """Delete what is old enough."""
    if node.settings.keep is None:
        return
    limit = await node.store.now() - node.settings.keep
    # Looked at every time, and not only when the oldest job of the last look is old enough: another
    # one may end meanwhile, a clock may be set. A look that finds nothing writes nothing.
    if await node.store.has_old(limit):
        # In batches: one long transaction would make writers wait.
        while await node.store.prune(limit, _PRUNE_BATCH):
            pass


# Approval timers

_TIMERS_EVERY: Final = 3600.0  # the agenda wakes it


async def run_approval_timers(node: WorkerNode) -> None:
    """Remind people of approvals, escalate them and let them expire; runs for ever."""
    work = partial(_run_timers, node)
    await every(_TIMERS_EVERY, work, what="running approval timers", wake=node.approvals_due)


async def _run_timers(node: WorkerNode) -> None:
    if await node.store.run_approval_timers():
        node.notices_due.set()
        node.poke()  # an approval that expired may make its job due


# The stuck watch


async def watch_for_stuck_jobs(node: WorkerNode) -> None:
    """Alert people to jobs without progress; runs for ever.

    A stuck job is not restarted: its code may only be slow, and two copies of it would do its work
    twice. So a person has to decide.
    """
    stalled = WeakSet[Run]()
    work = partial(_look_for_stuck_jobs, node, stalled)
    await every(node.settings.heartbeat, work, what="watching for stuck jobs")


async def _look_for_stuck_jobs(node: WorkerNode, stalled: WeakSet[Run]) -> None:
    """Mark jobs that have stopped to make progress, and those that make progress again.

    Raises:
        StoreError: A mark is not written, so it must be tried again.
    """
    for run in tuple(node.runs.values()):
        progresses = node.makes_progress(run)
        if run in stalled and progresses:
            await _mark(node, run, JobEvent(type="job.progressed", actor=node.owner))
            stalled.discard(run)
        elif run not in stalled and not progresses and run.verdict is None:
            await _alert_to_stuck_job(node, run)
            stalled.add(run)


async def _alert_to_stuck_job(node: WorkerNode, run: Run) -> None:
    """Log that a job is stuck, and alert people: once, however many workers run it in turn."""
    text = (
        f"{_busy_steps(run)} reported no progress for {node.settings.stuck_after:g} seconds: give "
        "it `timeout=` or report progress (ctx.progress, ctx.heartbeat()). It still runs, and is "
        "not started again. If it hangs, cancel the job; with a timeout=, and "
        'isolation="process" if it does not await, such a step ends by itself'
    )
    _log.warning("job %s is stuck: %s", run.job.id, text)
    note = JobEvent(type="job.stuck", data={"why": text}, actor=node.owner)
    if await _mark(node, run, note, alerts(run, NoticeKind.STUCK, "no progress", text)):
        node.notices_due.set()
        events.stuck(run, text)


async def _mark(
    node: WorkerNode, run: Run, note: JobEvent, notices: tuple[Notice, ...] = ()
) -> bool:
    """Write whether a job is stuck; return whether it is still ours."""
    # Not with `run.write`, which would count as progress.
    mark = Write(
        job_id=run.job.id,
        owner=node.owner,
        epoch=run.epoch,
        stalled=note.type == "job.stuck",
        events=(note,),
        notices=notices,
    )
    try:
        await node.store.write(mark)
    except LeaseLost:  # the job's new owner watches it
        return False
    return True


def _busy_steps(run: Run) -> str:
    steps = sorted(operation.entry.id for operation in run.working)
    return ", ".join(steps) if steps else "its code"


# The outbox sender

_SEND_EVERY: Final = 3600.0  # the agenda wakes it: other workers write notices, too
SENDS_PER_CHANNEL: Final = 20  # at the same time
SEND_TIMEOUT: Final = 60.0  # for all of one delivery …
_SEND_LEASE: Final = 120.0  # … after which another worker may take the notice


async def send_outbox(node: WorkerNode, sends: str) -> None:
    """Send what is due; runs for ever. `sends` is the supervisor of the sending processes."""
    sender = OutboxSender(node, sends)
    await every(_SEND_EVERY, sender.start_due, what="sending notices", wake=node.notices_due)


class OutboxSender:
    """Delivers notices to people, at least once, through the channels of the app.

    A notice is written in the same transaction as the event that it reports, and sent afterwards.
    The worker that takes it has a short lease on it; if that worker dies, another one sends it. A
    worker may die between delivering a notice and recording that, so people may get a notice twice,
    but always at least once.

    Each delivery is a process with a timeout, and each channel has its own limit: a recipient that
    does not answer delays no other channel, and occupies one slot of its own.
    """

    def __init__(self, node: WorkerNode, sends: str) -> None:
        self._node = node
        self._sends = sends
        self._channels = {channel.name: channel for channel in node.policy.all_channels}
        self._active: Counter[str] = Counter()  # by channel

    async def start_due(self) -> None:
        """Start to send what is due, for each channel as much as it has room for."""
        for name, channel in self._channels.items():
            if room := SENDS_PER_CHANNEL - self._active[name]:
                for notice in await self._node.store.take_notices([name], room, _SEND_LEASE):
                    self._active[name] += 1
                    TaskSupervisor.start_child(self._sends, self._send, channel, notice)

    async def _send(self, channel: ApprovalChannel, notice: Notice) -> None:
        """The process of one delivery."""
        try:
            approval = None
            if notice.approval_id is not None:
                approval = await self._node.store.approval(notice.approval_id)
            await self._try(channel, notice, approval)
        except StoreError as error:  # it is due again when its lease has run out
            _log.warning("sending notices: %s", error)
        finally:
            self._active[channel.name] -= 1
            # There is room now, and perhaps another notice for the same recipient.
            self._node.notices_due.set()

    async def _try(
        self, channel: ApprovalChannel, notice: Notice, approval: Approval | None
    ) -> None:
        store = self._node.store
        is_late = notice.alert and notice.tries and notice.kind is not NoticeKind.RESOLVED
        if is_late and await store.is_closed(notice):
            # Sent now, it would open again what its resolution has closed meanwhile.
            await store.settle_notice(notice.delivered("resolved meanwhile"))
            return
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                sent, *more = await _sent(channel, notice, approval)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a channel raises, it is tried again
            sent = notice.failed(_reason(error), await store.now())
            more = _undelivered(sent, self._channels)
            _log.warning("%s could not send %s: %s", sent.channel, sent.kind, sent.error)
        await store.settle_notice(sent, *more)
        events.notice_sent(sent)


async def _sent(
    channel: ApprovalChannel, notice: Notice, approval: Approval | None
) -> list[Notice]:
    """Send a notice to its recipient, or find out who the recipients are.

    Returns:
        The notice as it is afterwards, and one more for each recipient that was found.
    """
    if notice.recipient:
        return [notice.delivered(await channel.deliver(notice, approval, notice.recipient))]
    recipients = dict.fromkeys(await channel.recipients(notice, approval))
    if not recipients:
        raise LookupError("there is no recipient")
    return [notice.addressed(), *[notice.to(each) for each in recipients]]


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"TimeoutError: no answer within {SEND_TIMEOUT:g} seconds"
    return f"{type(error).__name__}: {error}"


def _undelivered(notice: Notice, channels: dict[str, ApprovalChannel]) -> list[Notice]:
    """Return notices, through the other channels, that one channel has given up."""
    if notice.state is not NoticeState.GIVEN_UP or notice.kind is NoticeKind.UNDELIVERED:
        return []
    whom = f" to {notice.recipient}" if notice.recipient else ""
    text = f"{notice.channel} could not deliver {notice.kind}{whom}: {notice.error}"
    return [
        Notice(
            id=digest("undelivered", notice.id, name)[:32],
            tenant=notice.tenant,
            kind=NoticeKind.UNDELIVERED,
            job_id=notice.job_id,
            channel=name,
            data=encode({"text": text}),
        )
        for name in channels
        if name != notice.channel
    ]
