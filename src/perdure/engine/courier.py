"""The courier: delivers what people must be told, at least once, by the channels of the app.

Each delivery is a process of its own, with a deadline, and each channel has room of its own:
whoever does not answer delays nobody else.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

from perdure.base.codec import digest, encode
from perdure.base.errors import StoreError
from perdure.base.retry import pause
from perdure.engine.node import Node
from perdure.engine.outage import Outage
from perdure.jobs.approval import Approval
from perdure.jobs.outbox import Notice, NoticeKind, NoticeState
from perdure.notify.desk import Channel
from perdure.otp.task_supervisor import TaskSupervisor

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY: Final = 1.0
AT_ONCE: Final = 20  # deliveries by one channel
DELIVERY_TIMEOUT: Final = 60.0  # for all of one delivery …
_LEASE: Final = 120.0  # … after which another worker may take it


async def deliver_notices(node: Node, deliveries: str) -> None:
    """Deliver what is due, for ever. `deliveries` is the supervisor of their processes."""
    courier = Courier(node, deliveries)
    outage = Outage("delivering notices", node.loop.time)
    while True:
        node.told.clear()
        try:
            await courier.take()
            outage.over()
        except StoreError as error:
            outage.failed(error)
            await pause(outage.delay)
        try:
            async with asyncio.timeout(_LOOK_EVERY):
                await node.told.wait()
        except TimeoutError:
            pass  # others write notices, too


class Courier:
    """Takes notices, and starts a process to deliver each."""

    def __init__(self, node: Node, deliveries: str) -> None:
        self._node = node
        self._deliveries = deliveries
        self._channels = {channel.name: channel for channel in node.rules.channels}
        self._sending: Counter[str] = Counter()

    async def take(self) -> None:
        """Take what is due, for every channel as much as it has room for."""
        for name, channel in self._channels.items():
            if room := AT_ONCE - self._sending[name]:
                for notice in await self._node.store.take_notices([name], room, _LEASE):
                    self._sending[name] += 1
                    TaskSupervisor.start_child(self._deliveries, self._work, channel, notice)

    async def _work(self, channel: Channel, notice: Notice) -> None:
        """Deliver one; another worker gets it if this one dies in between."""
        try:
            approval = None
            if notice.approval_id is not None:
                approval = await self._node.store.approval(notice.approval_id)
            await self._settle(channel, notice, approval)
        except StoreError as error:  # it is due again after its lease
            _log.warning("delivering notices: %s", error)
        finally:
            self._sending[channel.name] -= 1
            self._node.told.set()  # there is room, and perhaps another for the same recipient

    async def _settle(self, channel: Channel, notice: Notice, approval: Approval | None) -> None:
        store = self._node.store
        now = await store.now()
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT):
                told, *more = await _told(channel, notice, approval, now)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a channel does, it is tried again
            now = await store.now()
            told = notice.failed(_why(error), now)
            more = _instead(told, self._channels, now)
            _log.warning("%s could not be told by %s: %s", told.kind, told.channel, told.error)
        await store.give_back(told, *more)


async def _told(
    channel: Channel, notice: Notice, approval: Approval | None, now: float
) -> list[Notice]:
    """Tell one recipient, or find out who they are; give the notice as it is then, and new ones."""
    if notice.recipient:
        return [notice.delivered(await channel.deliver(notice, approval, notice.recipient))]
    recipients = dict.fromkeys(await channel.recipients(notice, approval))
    if not recipients:
        raise LookupError("there is nobody to tell")
    return [notice.addressed(), *[notice.to(each, now) for each in recipients]]


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"TimeoutError: no answer within {DELIVERY_TIMEOUT:g} seconds"
    return f"{type(error).__name__}: {error}"


def _instead(notice: Notice, channels: dict[str, Channel], now: float) -> list[Notice]:
    """Say by the other channels that one has given up."""
    if notice.state is not NoticeState.GIVEN_UP or notice.kind is NoticeKind.UNDELIVERED:
        return []
    whom = f" for {notice.recipient}" if notice.recipient else ""
    text = f"{notice.channel} did not take {notice.kind}{whom}: {notice.error}"
    return [
        Notice(
            id=digest("undelivered", notice.id, name)[:32],
            tenant=notice.tenant,
            kind=NoticeKind.UNDELIVERED,
            job_id=notice.job_id,
            channel=name,
            due_at=now,
            data=encode({"text": text}),
        )
        for name in channels
        if name != notice.channel
    ]
