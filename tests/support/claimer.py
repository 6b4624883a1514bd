"""A worker in an OS process of its own: `python -m tests.support.claimer URL OWNER [stopped]`."""

import asyncio
import os
import signal
import sys

from perdure.base.errors import LeaseLost
from perdure.store.open import open_store
from perdure.store.store import Store
from tests.support.store import GONE, claim_one, claims, ends, entry, write_of


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def work(store: Store, owner: str) -> None:
    """Claim and complete until nothing is left."""
    while found := await claims(store, 3, owner):
        for claim in found:
            await store.write(write_of(claim, entry(0, output=f'"{owner}"'.encode())))
            await store.write(write_of(claim, job=ends()))
            say(claim.job.id)


async def zombie(store: Store, owner: str) -> None:
    """Claim, be stopped for longer than the lease, and then try to write."""
    claim = await claim_one(store, owner, lease=GONE)
    say("claimed")
    os.kill(os.getpid(), signal.SIGSTOP)
    for write in (write_of(claim, entry(0, output=b'"zombie"')), write_of(claim, job=ends())):
        try:
            await store.write(write)
        except LeaseLost:
            say("refused")
        else:
            say("accepted")


async def main(url: str, owner: str, *how: str) -> None:
    store = open_store(url)
    await store.open()
    await (zombie if how else work)(store, owner)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
