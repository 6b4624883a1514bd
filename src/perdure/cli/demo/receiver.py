"""The system into which the demonstration loads: it counts what really arrives."""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncGenerator

import msgspec

from perdure.cli.demo.migration import Batch

LARGEST_BATCH = 1 << 20  # bytes


class Receiver:
    """Applies batches, each key once, and can hold an answer back.

    Attributes:
        rows: How often each row was applied; once is right.
        effects: How many batches were applied.
        repeated: How many were asked for again, and not applied again.
        holds: Whether an answer is being held back now.
    """

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.effects = 0
        self.repeated = 0
        self.holds = False
        self._hold_at = 0
        self._answers: dict[str, bytes] = {}

    def hold_at(self, effect: int) -> None:
        """Apply this batch, but do not answer: let the sender die in doubt."""
        self._hold_at = effect

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Take one batch."""
        try:
            batch = msgspec.json.decode(await reader.readline(), type=Batch)
            answer = self.apply(batch)
            if 0 < self._hold_at <= self.effects:
                self._hold_at, self.holds = 0, True
                await reader.read()  # returns when the sender is gone
                self.holds = False
            writer.write(answer)
            await writer.drain()
        except (OSError, msgspec.DecodeError):
            pass  # the sender was killed; it will come again
        finally:
            writer.close()

    def apply(self, batch: Batch) -> bytes:
        """Take a batch, unless its key was taken before; give the answer."""
        known = self._answers.get(batch.key)
        if known is not None:
            self.repeated += 1
            return known
        self.rows.update(batch.rows)
        self.effects += 1
        answer = self._answers[batch.key] = b"%d\n" % len(batch.rows)
        return answer


@contextlib.asynccontextmanager
async def receiving(receiver: Receiver) -> AsyncGenerator[int, None]:
    """Listen inside the block, on the port that this gives."""
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, limit=LARGEST_BATCH)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
