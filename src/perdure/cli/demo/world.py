"""The world outside, as the steps of the demonstration see it: one address that takes deeds."""

import asyncio
import contextlib
import os
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from perdure.engine.steps.step_context import StepContext


class Deed(Struct, frozen=True):
    """What is asked of the world.

    Attributes:
        key: The same at every try, so that the world can tell a repetition.
        what: In words; no two deeds of the demonstration have the same ones.
        rows: What is handed over, if anything is.
    """

    key: str
    what: str
    rows: list[int] = []


class World:
    """Where deeds are done, and where steps write down what they really did."""

    def __init__(self, folder: Path, port: int, pace: float) -> None:
        """Take where it is.

        Args:
            folder: Where the notes are.
            port: Where deeds are taken.
            pace: How long work takes: 0.5 is half as long as usual.
        """
        self.pace = pace
        self._port = port
        self._notes = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *words: object) -> None:
        """Write down what happened: the end of the demonstration tells what stands here."""
        os.write(self._notes, (" ".join(map(str, words)) + f" {os.getpid()}\n").encode())

    async def effect(self, ctx: StepContext, kind: str, what: str) -> str:
        """Have something done as an effect; the world knows a repeated deed by its key."""
        call = partial(self.do, what=what)
        return await ctx.effect(kind, call, target=what, in_doubt="replay", key_ttl="24h")

    async def do(self, key: str, what: str, rows: list[int] | None = None) -> str:
        """Have something done, and give the receipt."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(msgspec.json.encode(Deed(key, what, rows or [])) + b"\n")
            receipt = await reader.readline()
        finally:
            writer.close()
        if not receipt:
            raise ConnectionError("no answer")
        return receipt.decode().rstrip()


# The other side of the world: takes deeds, and counts what really arrives.

LARGEST_DEED = 1 << 20  # bytes


class Receiver:
    """Does each deed once for its key, and can hold an answer back.

    Attributes:
        done: What was done, in order.
        asked: How often it was asked for each.
        rows: How often each row was taken; once is right.
        holds: Whether an answer is being held back now.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked: Counter[str] = Counter()
        self.rows: Counter[int] = Counter()
        self.holds = False
        self._hold_at = ""
        self._receipts: dict[str, bytes] = {}

    def hold_at(self, what: str) -> None:
        """Do this deed, but do not answer: let the sender die in doubt."""
        self._hold_at = what

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Take one deed."""
        try:
            deed = msgspec.json.decode(await reader.readline(), type=Deed)
            receipt = self.take(deed)
            if deed.what == self._hold_at:
                self._hold_at, self.holds = "", True
                await reader.read()  # returns when the sender is gone
                self.holds = False
            writer.write(receipt)
            await writer.drain()
        except (OSError, msgspec.DecodeError):
            pass  # the sender was killed; it will come again
        finally:
            writer.close()

    def take(self, deed: Deed) -> bytes:
        """Do a deed, unless its key was seen before; give the receipt."""
        self.asked[deed.what] += 1
        known = self._receipts.get(deed.key)
        if known is not None:
            return known
        self.rows.update(deed.rows)
        self.done.append(deed.what)
        receipt = self._receipts[deed.key] = b"receipt %d\n" % len(self.done)
        return receipt

    @property
    def repeated(self) -> int:
        """How many deeds were asked for again, and not done again."""
        return self.asked.total() - len(self.done)


@contextlib.asynccontextmanager
async def receiving(receiver: Receiver) -> AsyncGenerator[int, None]:
    """Listen inside the block, on the port that this gives."""
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, limit=LARGEST_DEED)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
