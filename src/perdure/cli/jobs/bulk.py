"""`perdure jobs cancel`, `pause`, `resume` and `retry`: some jobs, or all that match."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich import box
from rich.table import Table

from perdure.cli.jobs import formatting
from perdure.cli.jobs.choosing import (
    NameOption,
    QueryOption,
    QueueOption,
    StateOption,
    TenantOption,
    asked_for,
)
from perdure.cli.jobs.control import (
    STDIN,
    ByOption,
    JobCommand,
    ReasonOption,
    control,
    control_all,
)
from perdure.cli.output import (
    Code,
    Format,
    FormatOption,
    cell,
    console,
    give,
    give_list,
    perform,
    progress,
    refuse,
    say,
)
from perdure.cli.target import AppOption, LabelOption, UrlOption, find_caller, read_ids, short
from perdure.engine.caller import Caller
from perdure.engine.handle import Handle
from perdure.jobs.bulk import BulkAction, BulkReport, BulkResult
from perdure.jobs.model import JobQuery
from perdure.jobs.state import JobState

MOST_LINES: Final = 40  # of the jobs of a report, without -o json

SomeJobs: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...",
        help="Jobs; `-` reads ids from standard input. Without, all that the options choose.",
    ),
]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All jobs of the store.")]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Only list what would be done, and what refused.")
]
Chosen: TypeAlias = tuple[
    str, list[JobState] | None, list[str] | None, str | None, str | None, str | None
]
Doing: TypeAlias = Callable[[Handle[Any], str, str], Awaitable[None]]


def _command_of(action: BulkAction, text: str, do: Doing) -> Callable[..., None]:
    """Return the command for an action that takes no options of its own."""

    def command(  # noqa: PLR0913  an option is a parameter
        job: SomeJobs = None,
        *,
        by: ByOption,
        reason: ReasonOption = "",
        query: QueryOption = "",
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
        chosen = _chosen(job, (query, state, label, name, tenant, queue), every, dry_run)
        caller = find_caller(app, url)
        if chosen is None:
            _control(caller, job or [], output, lambda handle: do(handle, reason, by))
        else:
            _command_all(caller, action, chosen, (by, reason), (dry_run, output))

    command.__doc__ = text
    return command


cancel = _command_of(
    "cancel",
    "Cancel jobs, or all that match; running steps are stopped.",
    lambda handle, reason, by: handle.cancel(reason, by=by),
)
pause = _command_of(
    "pause",
    "Pause jobs, or all that match: running steps finish, and nothing more runs.",
    lambda handle, reason, by: handle.pause(reason, by=by),
)
resume = _command_of(
    "resume",
    "Resume jobs that are paused or need attention, or all that match.",
    lambda handle, reason, by: handle.resume(reason, by=by),
)


def retry(  # noqa: PLR0913  an option is a parameter
    job: SomeJobs = None,
    *,
    by: ByOption,
    step: Annotated[
        str | None, typer.Option("--from", help="Start with this step of JOB, such as `load#2`.")
    ] = None,
    reason: ReasonOption = "",
    query: QueryOption = "",
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
    """Retry failed jobs from where they failed, or all that match; finished steps stay done."""
    chosen = _chosen(job, (query, state, label, name, tenant, queue), every, dry_run)
    caller = find_caller(app, url)
    if chosen is None:
        _control(caller, job or [], output, lambda handle: handle.retry(step, reason, by=by))
    elif step is not None:
        refuse("--from names a step of one job: pass the JOB", Code.USAGE)
    else:
        _command_all(caller, "retry", chosen, (by, reason), (dry_run, output))


def _chosen(
    jobs: list[str] | None,
    chosen: Chosen,
    every: bool,  # noqa: FBT001  as it was given
    dry_run: bool,  # noqa: FBT001
) -> JobQuery | None:
    """Return which jobs are meant; None if they are named."""
    if jobs:
        if any(chosen) or every or dry_run:
            refuse("name a JOB, or choose jobs by options, but not both", Code.USAGE)
        return None
    if any(chosen) == every:
        ways = "--query, --state, --name, --tenant, --queue or --label"
        refuse(
            f"which jobs? Name a JOB, or choose them by {ways}, or --all for all jobs of the store",
            Code.USAGE,
        )
    query, state, label, name, tenant, queue = chosen
    return asked_for(query, state, label, name=name, tenant=tenant, queue=queue)


def _control(caller: Caller, jobs: list[str], output: Format, command: JobCommand) -> None:
    if len(jobs) == 1:
        control(caller, jobs[0], output, command)
    else:
        named = [job for job in jobs if job != STDIN]
        control_all(caller, named + (read_ids() if STDIN in jobs else []), output, command)


def _command_all(
    caller: Caller,
    action: BulkAction,
    query: JobQuery,
    who: tuple[str, str],
    how: tuple[bool, Format],
) -> None:
    dry_run, output = how
    report = perform(_commanded, caller, action, query, (*who, dry_run))
    if output is Format.JSON:
        give(_as_json(report), indent=2)
        return
    if give_list([_result_as_json(each) for each in report.affected], output):
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
    caller: Caller, action: BulkAction, query: JobQuery, how: tuple[str, str, bool]
) -> BulkReport:
    by, reason, dry_run = how
    async with caller:
        with progress(f"{action} jobs"):
            return await caller.command_jobs(action, query, by=by, reason=reason, dry_run=dry_run)


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
