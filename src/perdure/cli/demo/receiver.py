"""The other side of the world: takes deeds, and counts what really arrives."""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator

import msgspec

from perdure.cli.demo.world import Deed

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
