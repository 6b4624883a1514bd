"""The world outside, as the steps of the demonstration see it: one address that takes deeds."""

import asyncio
import os
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from perdure.engine.step_context import StepContext


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
        return await ctx.effect(kind, call, target=what, in_doubt="replay", key_lives="24h")

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
