"""`perdure effects`: what jobs did to the outside world, and what is in doubt."""

import getpass
from typing import Annotated, Any

import typer
from rich.table import Table

from perdure.base.codec import parse
from perdure.base.visible import visible
from perdure.cli.jobs.formatting import effect_as_json
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    cell,
    give_table,
    perform,
    refuse,
    say,
)
from perdure.cli.target import AppOption, JobArgument, UrlOption, find_caller, short
from perdure.engine.caller import Caller
from perdure.jobs.effect import Choice, Effect
from perdure.notify.message import spell_time

_PAGE = 1000


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="List and resolve effects of jobs.", no_args_is_help=True)
    group.command("list")(list_effects)
    group.command()(resolve)
    app.add_typer(group, name="effects")


def list_effects(
    *,
    job: Annotated[
        str | None, typer.Option(help="All effects of this job, resolved ones too.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List the effects that are in doubt, or all effects of one job."""
    found = perform(_list, find_caller(app, url), job, tenant)
    rows = [effect_as_json(each) | {"job": each.job_id} for each in found]
    empty = "No effect is in doubt." if job is None else "The job has no effects."
    give_table(rows, output, lambda: _drawn(found), empty=empty, key="key")


async def _list(app: Caller, job: str | None, tenant: str | None) -> list[Effect]:
    async with app:
        if job is not None:
            return await (await app.handle(job)).effects()
        store, found = await app.store(), list[Effect]()
        while page := await store.open_effects(tenant, _PAGE, _place(found)):
            found += page
        return found


def _place(found: list[Effect]) -> tuple[float, str, int] | None:
    return (found[-1].called_at, found[-1].job_id, found[-1].no) if found else None


def _drawn(found: list[Effect]) -> Table:
    table = Table("job", "no", "kind", "target", "state", "step", "called", "key", box=None)
    for each in found:
        what = (each.kind, visible(each.target, 60), each.state.value, each.place.step)
        row = (short(each.job_id), str(each.no), *what, spell_time(each.called_at), each.key[:12])
        table.add_row(*map(cell, row))
    return table


def resolve(  # noqa: PLR0913  an option is a parameter
    job: JobArgument,
    effect: Annotated[
        int, typer.Argument(help="The number of the effect in the ledger of the job.")
    ],
    *,
    happened: Annotated[bool, typer.Option("--happened", help="It happened.")] = False,
    did_not: Annotated[
        bool, typer.Option("--did-not", help="It did not happen; call again.")
    ] = False,
    compensate: Annotated[bool, typer.Option("--compensate", help="Undo the job.")] = False,
    result: Annotated[
        str | None, typer.Option(help="With --happened: the result, as JSON.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", "-r", help="How you know what happened.")] = "",
    by: Annotated[str, typer.Option("--by", help="Who decides; by default you.")] = "",
    url: UrlOption = None,
    app: AppOption = None,
) -> None:
    """Resolve an effect that is in doubt: say whether it happened."""
    choice = _choice(happened=happened, did_not=did_not, compensate=compensate)
    given = {"result": result, "reason": reason, "by": by or getpass.getuser()}
    perform(_resolve, find_caller(app, url), job, effect, choice, given)
    say(f"Effect {effect}: {choice}.")


def _choice(*, happened: bool, did_not: bool, compensate: bool) -> Choice:
    if happened + did_not + compensate != 1:
        refuse("pass exactly one of --happened, --did-not and --compensate", Code.USAGE)
    if happened:
        return "happened"
    return "did not happen" if did_not else "compensate"


async def _resolve(
    app: Caller, job: str, effect: int, choice: Choice, given: dict[str, Any]
) -> None:
    if given["result"] is not None:
        given["result"] = parse(given["result"], "the result")
    async with app:
        await (await app.handle(job)).resolve(effect, choice, **given)
