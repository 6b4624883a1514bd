"""`perdure jobs output`: what a job has emitted, and what it emits while one waits."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import typer

from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    as_json,
    give,
    perform,
    pour,
    refuse,
    show,
    warn,
)
from perdure.cli.target import AppOption, JobArgument, UrlOption, find_caller
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.jobs.output import OutputPiece
from perdure.jobs.redaction import for_people


def output(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    *,
    topic: Annotated[
        str | None, typer.Option(help="The topic; may be left out if there is only one.")
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Begin after this position.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends.")
    ] = False,
    join: Annotated[
        bool, typer.Option("--join", help="Print texts one after the other, not each on a line.")
    ] = False,
    url: UrlOption = None,
    app: AppOption = None,
    shape: FormatOption = Format.TABLE,
) -> None:
    """Print what a job has emitted: one line for each piece."""
    perform(_print, find_caller(app, url), job, (topic, after), (follow, join, shape))


async def _print(
    app: Caller, job: str, which: tuple[str | None, int], how: tuple[bool, bool, Format]
) -> None:
    (topic, after), (follow, join, shape) = which, how
    async with app:
        handle = await app.handle(job)
        wanted = await _topic(handle, topic, follow=follow)
        if wanted is None:
            warn(f"job {handle.id} has emitted nothing")
            return
        found = (
            handle.stream(wanted, after=after) if follow else _so_far(app, handle, wanted, after)
        )
        async with aclosing(found) as pieces:
            async for piece in pieces:
                if shape is not Format.TABLE:
                    give(_as_json(piece))
                elif join and piece.kind == "value":
                    pour(_text(piece))
                else:
                    show(_line(piece))
    if join:
        show("")


async def _topic(handle: Handle[Any], topic: str | None, *, follow: bool) -> str | None:
    """Return the topic to be read; None if the job has none."""
    if topic is not None:
        return topic
    names = [each.topic for each in await handle.topics()]
    if len(names) > 1:
        refuse(f"which topic? The job has {', '.join(names)}: pass --topic", Code.USAGE)
    if not names and follow:
        refuse("the job has emitted nothing yet: say with --topic what to wait for", Code.USAGE)
    return names[0] if names else None


async def _so_far(
    app: Caller, handle: Handle[Any], topic: str, after: int
) -> AsyncGenerator[OutputPiece, None]:
    store = await app.store()
    while pieces := (await store.output(handle.id, topic, after)).pieces:
        for piece in pieces:
            yield piece
        after = pieces[-1].position


def _as_json(piece: OutputPiece) -> dict[str, Any]:
    told: dict[str, Any] = {"position": piece.position, "kind": piece.kind, "topic": piece.topic}
    if piece.kind == "dropped":
        return told
    told |= {"step": piece.step, "attempt": piece.attempt, "at": piece.at}
    if piece.kind == "reset":
        return told | {"discards": piece.discards}
    return told | {"value": for_people(piece.data)}


def _line(piece: OutputPiece) -> str:
    if piece.kind == "dropped":
        return f"[what was emitted up to position {piece.position} was dropped: it was too much]"
    if piece.kind == "reset":
        again = f"attempt {piece.attempt} of {piece.step} begins"
        return f"[{again}: what it emitted from position {piece.discards} on is void]"
    return _text(piece)


def _text(piece: OutputPiece) -> str:
    value = for_people(piece.data)
    return value if isinstance(value, str) else as_json(value)
