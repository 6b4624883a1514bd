"""Which jobs a command is about: a query, the options that say the same, and their completion."""

import asyncio
import os
from collections.abc import Iterator
from typing import Annotated, Final, TypeAlias

import typer

from perdure.base.errors import JobError, QueryError
from perdure.cli.output import Code, refuse
from perdure.cli.target import read_labels
from perdure.engine.caller import Caller
from perdure.jobs.model import JobQuery
from perdure.jobs.query_text import QueryWords, complete, parse, spell
from perdure.jobs.state import JobState

PATIENCE: Final = 0.5  # seconds that the store has to help with a completion


async def _words(url: str) -> QueryWords:
    async with asyncio.timeout(PATIENCE), Caller(url) as caller:
        return await (await caller.store()).query_words()


def known_words() -> QueryWords:
    """Return what the jobs of the store in the environment are called; nothing if that is slow."""
    url = os.environ.get("PERDURE_URL", "")
    try:
        return asyncio.run(_words(url)) if url else QueryWords()
    except (JobError, OSError, TimeoutError):
        return QueryWords()


def complete_query(incomplete: str) -> Iterator[str]:
    """Yield how a term of a query may go on."""
    for each in complete(incomplete, len(incomplete), known_words(), most=50):
        yield each.text


def complete_name(incomplete: str) -> Iterator[str]:
    """Yield the names of jobs that begin so."""
    return (each for each in known_words().names if each.startswith(incomplete))


def complete_queue(incomplete: str) -> Iterator[str]:
    """Yield the queues that begin so."""
    return (each for each in known_words().queues if each.startswith(incomplete))


StateOption: TypeAlias = Annotated[
    list[JobState] | None,
    typer.Option("--state", "-s", case_sensitive=False, help="Only this state; repeatable."),
]
NameOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Only this job or plan.", autocompletion=complete_name)
]
TenantOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this tenant.")]
QueueOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Only this queue.", autocompletion=complete_queue)
]
QueryOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--query",
        "-q",
        help="Which jobs, as in `perdure jobs list`.",
        autocompletion=complete_query,
    ),
]


def asked_for(
    text: str, states: list[JobState] | None, labels: list[str] | None, **fields: str | None
) -> JobQuery:
    """Return the query of a text and of the options that say the same; exit if it is none."""
    try:
        options = JobQuery(
            states=tuple(states) if states else None,
            labels=read_labels(labels),
            **fields,  # pyright: ignore[reportArgumentType]  its own fields
        )
        return parse(f"{text} {spell(options)}".strip())
    except QueryError as error:
        pointer = " " * error.position + "^"
        refuse(f"{error.why}\n{error.text}\n{pointer}", Code.USAGE)
