"""`perdure jobs cancel`, `pause`, `resume` and `retry`: one job, or all that match."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich import box
from rich.table import Table

from perdure.app import App
from perdure.cli.jobs import formatting
from perdure.cli.jobs.control import ByOption, ReasonOption, control
from perdure.cli.output import Code, Format, FormatOption, cell, console, give, perform, refuse, say
from perdure.cli.target import (
    AppOption,
    LabelOption,
    UrlOption,
    find_app,
    read_labels,
    short,
)
from perdure.engine.handle import Handle
from perdure.jobs.bulk import BulkAction, BulkReport, BulkResult
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState

MOST_LINES: Final = 40  # of the jobs of a report, without -o json

_ONE: Final[dict[BulkAction, Callable[[Handle[Any], str, str], Awaitable[None]]]] = {
    "cancel": lambda handle, reason, by: handle.cancel(reason, by=by),
    "pause": lambda handle, reason, by: handle.pause(reason, by=by),
    "resume": lambda handle, reason, by: handle.resume(reason, by=by),
}

SomeJob: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="A job; without it, all jobs that the options choose."),
]
StateOption: TypeAlias = Annotated[
    list[JobState] | None,
    typer.Option("--state", "-s", case_sensitive=False, help="Only this state; repeatable."),
]
NameOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this job or plan.")]
TenantOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this tenant.")]
QueueOption: TypeAlias = Annotated[str | None, typer.Option(help="Only this queue.")]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All jobs of the store.")]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Only list what would be done, and what refused.")
]


def command_of(action: BulkAction) -> Callable[..., None]:
    """Return the command for an action that takes no options of its own."""

    def command(  # noqa: PLR0913  an option is a parameter
        job: SomeJob = None,
        *,
        by: ByOption,
        reason: ReasonOption = "",
        state: StateOption = None,
        name: NameOption = None,
        tenant: TenantOption = None,
        queue: QueueOption = None,
        label: LabelOption = None,
        every: AllOption = False,
        dry_run: DryRunOption = False,
        url: UrlOption = None,
        app: AppOption = None,
        output: FormatOption = Format.TABLE,
    ) -> None:
        found = find_app(app, url)
        query = _query(job, (state, name, tenant, queue, label), every=every, dry_run=dry_run)
        if query is None:
            control(found, str(job), output, lambda handle: _ONE[action](handle, reason, by))
        else:
            _command_all(found, action, query, (by, reason), (dry_run, output))

    return command


def retry(  # noqa: PLR0913  an option is a parameter
    job: SomeJob = None,
    *,
    by: ByOption,
    step: Annotated[
        str | None, typer.Option("--from", help="Start with this step of JOB, such as `load#2`.")
    ] = None,
    reason: ReasonOption = "",
    state: StateOption = None,
    name: NameOption = None,
    tenant: TenantOption = None,
    queue: QueueOption = None,
    label: LabelOption = None,
    every: AllOption = False,
    dry_run: DryRunOption = False,
    url: UrlOption = None,
    app: AppOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Retry a failed job from where it failed, or all that match; finished steps stay done."""
    found = find_app(app, url)
    query = _query(job, (state, name, tenant, queue, label), every=every, dry_run=dry_run)
    if query is None:
        control(found, str(job), output, lambda handle: handle.retry(step, reason, by=by))
    elif step is not None:
        refuse("--from names a step of one job: pass the JOB", Code.USAGE)
    else:
        _command_all(found, "retry", query, (by, reason), (dry_run, output))


Chosen: TypeAlias = tuple[
    list[JobState] | None, str | None, str | None, str | None, list[str] | None
]


def _query(job: str | None, chosen: Chosen, *, every: bool, dry_run: bool) -> JobQuery | None:
    """Return which jobs are meant; None if it is one job."""
    if job is not None:
        if any(chosen) or every or dry_run:
            refuse("name a JOB, or choose jobs by options, but not both", Code.USAGE)
        return None
    if any(chosen) == every:
        ways = "--state, --name, --tenant, --queue or --label, or --all for all jobs of the store"
        refuse(f"which jobs? Name a JOB, or choose them by {ways}", Code.USAGE)
    state, name, tenant, queue, label = chosen
    return JobQuery(
        states=tuple(state) if state else None,
        name=name,
        tenant=tenant,
        queue=queue,
        labels=read_labels(label),
    )


def _command_all(
    app: App,
    action: BulkAction,
    query: JobQuery,
    who: tuple[str, str],
    how: tuple[bool, Format],
) -> None:
    dry_run, output = how
    report = perform(_commanded, app, action, query, (*who, dry_run))
    if output is Format.JSON:
        give(_as_json(report), indent=2)
        return
    if report.results:
        console().print(_drawn(report))
    if (left := len(report.results) - MOST_LINES) > 0:
        say(f"… and {left} more (-o json lists all)")
    would = "would " if dry_run else ""
    say(
        f"{len(report.affected)} jobs {would}get the command to {action}, "
        f"{len(report.refused)} {would}refuse it"
    )


async def _commanded(
    app: App, action: BulkAction, query: JobQuery, how: tuple[str, str, bool]
) -> BulkReport:
    by, reason, dry_run = how
    async with app:
        return await app.command_jobs(action, query, by=by, reason=reason, dry_run=dry_run)


def _as_json(report: BulkReport) -> dict[str, Any]:
    return {
        "action": report.action,
        "dry_run": report.dry_run,
        "affected": [_result_as_json(each) for each in report.affected],
        "refused": [_result_as_json(each) for each in report.refused],
    }


def _result_as_json(result: BulkResult) -> dict[str, Any]:
    told = {"id": result.job_id, "name": result.name, "state": result.state.value}
    return {**told, "why": result.refused} if result.refused else told


def _drawn(report: BulkReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "job", "state", ""):
        table.add_column(name)
    for each in report.results[:MOST_LINES]:
        why = cell(f"refused: {each.refused}" if each.refused else "", style="red")
        table.add_row(short(each.job_id), cell(each.name), formatting.state(each.state), why)
    return table
