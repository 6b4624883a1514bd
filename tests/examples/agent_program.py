"""The agent of the examples, for `tests.support.agent_kills`."""

import os
import sys
from pathlib import Path
from typing import Any

from examples.agent.__main__ import ANN
from examples.agent.tools import app as example
from perdure import App, Handle
from tests.support.engine import QUICK

HAPPENED = None  # nothing is ever in doubt: shop and mail server honour keys


def build(url: str, log: Path) -> App:
    """Return an app with the job and the steps of the example, whose world is in this folder."""
    sys.stdout = sys.stderr  # what the example prints is not for the harness
    os.environ |= {"AGENT_FOLDER": str(log.parent), "PACE": "0.01"}
    world = log.parent / "world.log"
    if not world.is_symlink():
        world.symlink_to(log)
    app = App(url, worker=QUICK)
    app.include(example)
    return app


async def people(app: App, handle: Handle[Any]) -> None:
    """Approve what is asked, as Ann."""
    for asked in await app.approvals():
        await app.decide(asked, "approve", by=ANN)
