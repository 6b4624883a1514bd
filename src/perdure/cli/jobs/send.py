"""`perdure jobs send`: a message for a job that waits for one."""

from typing import Annotated

import typer

from perdure.app import App
from perdure.base.codec import parse
from perdure.cli.jobs.find import IdArgument, find_job
from perdure.cli.outcome import perform
from perdure.cli.output import Format, FormatOption, give, say
from perdure.cli.submit import read_argument
from perdure.cli.target import AppOption, UrlOption, find_app


def send(  # noqa: PLR0913  an option is a parameter
    job: IdArgument,
    topic: Annotated[str, typer.Argument(help="What it is about, as in `ctx.receive`.")],
    message: Annotated[
        str, typer.Argument(help="The message as JSON; @FILE: from a file; -: from standard input.")
    ] = "null",
    *,
    key: Annotated[
        str | None, typer.Option("--key", help="Twice the same key is one message.")
    ] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Send a job a message, for its `ctx.receive`."""
    id, is_new = perform(_send, find_app(app, url), job, (topic, message), key)
    if output is Format.JSON:
        give({"id": id, "new": is_new})
    else:
        say(f"job {id} has " + ("the message" if is_new else "a message of this key already"))


async def _send(app: App, job: str, what: tuple[str, str], key: str | None) -> tuple[str, bool]:
    topic, text = what
    payload = parse(read_argument(text), "the message")
    async with app:
        handle = await find_job(app, job)
        return handle.id, await handle.send(topic, payload, key=key)
