"""The desk of an app: where its channels find approvals, before the store is open."""

from collections.abc import Awaitable, Callable

from perdure.engine import tell
from perdure.jobs.approval import Approval, Refusal, Vote
from perdure.jobs.link import Link, LinkUse
from perdure.store.port import Store


class AppDesk:
    """Opens the store when it is first asked for something; see `perdure.notify.desk.Desk`."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store

    async def now(self) -> float:
        return await (await self._store()).now()

    async def approval(self, approval_id: str) -> Approval | None:
        return await (await self._store()).approval(approval_id)

    async def vote(
        self, approval_id: str, vote: Vote, use: LinkUse | None = None
    ) -> Approval | Refusal:
        return tell.voted(await (await self._store()).vote(approval_id, vote, use), vote)

    async def keep_link(self, link: Link) -> None:
        await (await self._store()).keep_link(link)

    async def link(self, link_id: str) -> Link | None:
        return await (await self._store()).link(link_id)

    async def turned_away(self, approval_id: str | None, channel: str, why: str) -> None:
        await (await self._store()).turned_away(approval_id, channel, why)
