"""The courier: delivers what people must be told, at least once, by the channels of the app."""

import asyncio
import logging
from typing import Final

from perdure.base.codec import digest, encode
from perdure.base.errors import StoreError
from perdure.engine.node import Node
from perdure.jobs.outbox import Notice, NoticeKind, NoticeState
from perdure.notify.desk import Channel

_log = logging.getLogger("perdure.worker")

_LOOK_EVERY: Final = 1.0
_AT_ONCE: Final = 20


async def deliver_notices(node: Node) -> None:
    """Deliver what is due, for ever."""
    channels = {channel.name: channel for channel in node.rules.channels}
    while True:
        node.told.clear()
        try:
            while notices := await node.store.take_notices(list(channels), _AT_ONCE):
                for notice in notices:
                    await _deliver(node, channels, notice)
        except StoreError as error:
            _log.warning("delivering notices: %s", error)
        try:
            async with asyncio.timeout(_LOOK_EVERY):
                await node.told.wait()
        except TimeoutError:
            pass  # others write notices, too


async def _deliver(node: Node, channels: dict[str, Channel], notice: Notice) -> None:
    """Deliver one; another worker gets it if this one dies in between."""
    approval = None
    if notice.approval_id is not None:
        approval = await node.store.approval(notice.approval_id)
    try:
        receipt = await channels[notice.channel].deliver(notice, approval)
    except Exception as error:  # noqa: BLE001 - whatever a channel does, it is tried again
        now = await node.store.now()
        told = notice.failed(f"{type(error).__name__}: {error}", now)
        _log.warning("%s could not be told by %s: %s", notice.kind, notice.channel, told.error)
        await node.store.give_back(told, *_instead(told, channels, now))
    else:
        await node.store.give_back(notice.delivered(receipt))


def _instead(notice: Notice, channels: dict[str, Channel], now: float) -> list[Notice]:
    """Say by the other channels that one has given up."""
    if notice.state is not NoticeState.GIVEN_UP or notice.kind is NoticeKind.UNDELIVERED:
        return []
    text = f"{notice.channel} did not take {notice.kind}: {notice.error}"
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
