"""The index: how often each word was seen, kept by an agent."""

import heapq
from collections import Counter

from perdure.otp import Agent

NAME = "App.Index"

Counts = Counter[str]


async def inc_tokens(tokens: list[str]) -> None:
    """Count the words of one page, all of them or none."""
    await Agent.update(NAME, _count, tokens)


async def top(n: int) -> list[tuple[str, int]]:
    """Return the most frequent words; equally frequent ones in alphabetical order."""
    return await Agent.get(NAME, _most_frequent, n)


# These run inside the agent, which owns its state and need not copy it.


def _count(counts: Counts, tokens: list[str]) -> Counts:
    counts.update(tokens)
    return counts


def _most_frequent(counts: Counts, n: int) -> list[tuple[str, int]]:
    return heapq.nsmallest(n, counts.items(), key=lambda item: (-item[1], item[0]))
