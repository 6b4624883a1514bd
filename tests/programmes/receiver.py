"""A receiver of payments with a log of its own: a process that knows nothing of jobs.

`python -m tests.programmes.receiver LOG SEED` prints its port, on the loopback, and serves until
its input ends. A request is a line of JSON on a connection of its own, and so is the answer.
It takes its time before and after it acts, goes on with what was asked for by a caller that has
died meanwhile, and now and then loses an answer or refuses.

    charge   by manner: honours  knows a key again, and gives the first answer
                        strict   knows a key again, and refuses it
                        ignores  acts at every call
    refund   gives back all that stands of a reference, when nothing of it is under way
    query    tells by the key: it happened, it did not, or it is under way
    spend    just notes what was spent
"""

import asyncio
import json
import os
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from perdure.base.retry import pause

Words = dict[str, Any]

_LATENCY = 0.02  # seconds, at most, before it acts and again before it answers
_REFUSES, _LOSES = 0.01, 0.03  # which part of the calls


class Receiver:
    """Acts, and writes down what it did."""

    def __init__(self, log: Path, seed: int) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._chance = random.Random(seed)
        self._answers: dict[str, Words] = {}  # by key
        self._under_way = Counter[str]()  # requests by reference and by key
        self._standing: dict[str, list[str]] = defaultdict(list)  # charges by reference
        self._number = 0
        self._changed = asyncio.Condition()

    def note(self, what: str, words: Words) -> None:
        """Write a line; it is on the disk before anybody hears of it."""
        at = asyncio.get_running_loop().time()
        os.write(self._log, json.dumps({"what": what, "at": at, **words}).encode() + b"\n")
        os.fdatasync(self._log)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            if line := await reader.readline():
                answer = await self._answer(json.loads(line))
                if answer is not None:
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
        except ConnectionError:
            pass  # who asked was killed
        finally:
            writer.close()

    async def _answer(self, words: Words) -> Words | None:
        if words["op"] == "query":
            return self._query(words["key"])
        if words["op"] == "spend":
            self.note("spend", words)
            return {}
        self.note("came", words)
        marks = (words["key"], words["ref"])
        if words["op"] == "refund":
            await self._quiet(words["ref"])
        self._under_way.update(marks)
        try:
            await self._pause()
            answer = self._charge(words) if words["op"] == "charge" else self._refund(words)
        finally:
            self._under_way.subtract(marks)
            async with self._changed:
                self._changed.notify_all()
        await self._pause()
        return None if self._chance.random() < _LOSES else answer

    async def _pause(self) -> None:
        await pause(self._chance.random() * _LATENCY)

    async def _quiet(self, ref: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._under_way[ref])

    def _query(self, key: str) -> Words:
        if key in self._answers:
            return {"happened": self._answers[key]}
        return {"unknown": True} if self._under_way[key] else {}

    def _charge(self, words: Words) -> Words:
        key, manner = words["key"], words["manner"]
        if key in self._answers and manner != "ignores":
            self.note("known", words)
            return self._answers[key] if manner == "honours" else {"refused": "this key was used"}
        if self._chance.random() < _REFUSES:
            self.note("refused", words)
            return {"refused": "not now"}
        self._number += 1
        charge = f"ch_{self._number}"
        self._standing[words["ref"]].append(charge)
        self._answers[key] = {"id": charge}
        self.note("charge", {**words, "charge": charge})
        return {"id": charge}

    def _refund(self, words: Words) -> Words:
        key, ref = words["key"], words["ref"]
        if key in self._answers:
            self.note("known", words)
            return self._answers[key]
        charges = self._standing.pop(ref, [])
        self._answers[key] = {"refunded": charges}
        self.note("refund", {**words, "charges": charges})
        return self._answers[key]


async def call(port: int, **words: Any) -> Words:
    """Ask the receiver.

    Raises:
        ConnectionError: It gave no answer, whatever it did.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(json.dumps(words).encode() + b"\n")
        answer = await reader.readline()
    finally:
        writer.close()
    if not answer:
        raise ConnectionError("the receiver gave no answer")
    return json.loads(answer)


async def main(log: Path, seed: int) -> None:
    """Serve until the input ends."""
    receiver = Receiver(log, seed)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    async with server:
        await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
