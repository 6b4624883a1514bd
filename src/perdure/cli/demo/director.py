"""Runs the demonstration: one act after the other, in one store."""

import asyncio
from typing import Final

from msgspec import Struct

from perdure.cli.demo.mailing import MailingAct
from perdure.cli.demo.migration_act import MigrationAct
from perdure.cli.demo.order import OrderAct
from perdure.cli.demo.payout import PayoutAct
from perdure.cli.demo.play import build
from perdure.cli.demo.receiver import receiving
from perdure.cli.demo.scene import Outcome, Scene

LONGEST: Final = 150.0  # seconds, after which something is wrong
ACTS: Final = (MigrationAct, MailingAct, OrderAct, PayoutAct)


class Course(Struct, frozen=True, kw_only=True):
    """How the demonstration went."""

    outcomes: tuple[Outcome, ...]
    jobs: dict[str, int]  # by state
    kills: int
    effects: int
    requests_repeated: int
    seconds: float


async def direct(scene: Scene) -> Course:
    """Run it to its end."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with receiving(scene.receiver) as port, build(scene.folder, port) as app:
        with scene.opened(app, port):
            async with asyncio.timeout(LONGEST):
                outcomes = [await act(scene).play() for act in ACTS]
        jobs = await (await app.store()).counts()
    return Course(
        outcomes=tuple(outcomes),
        jobs=jobs,
        kills=scene.kills,
        effects=len(scene.receiver.done),
        requests_repeated=scene.receiver.repeated,
        seconds=loop.time() - began,
    )
