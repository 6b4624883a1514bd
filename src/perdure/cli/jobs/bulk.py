"""`perdure jobs cancel`, `pause`, `resume` and `retry`: some jobs, or all that match."""

from collections.abc import Awaitable, Callable
from inspect import Parameter, signature
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
    counted,
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

MOST_LINES: Final = 40  # of the jobs of a report, without -o json

SomeJobs: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...",
        help="Ids of jobs; `-` reads them from standard input. Without any, the options choose.",
    ),
]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All jobs of the store.")]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Only list what would be done, and what would be refused.")
]
Doing: TypeAlias = Callable[..., Awaitable[None]]  # with the handle of a job

_CHOOSING: Final = ("query", "state", "label", "name", "tenant", "queue")


def _shared(  # noqa: PLR0913  an option is a parameter
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
    """Take what all of these commands take; `_command_of` reads it."""


def _command_of(action: BulkAction, text: str, do: Doing, *own: Parameter) -> Callable[..., None]:
    """Return the command for an action, with the options that all take and those of its own."""

    def command(**given: Any) -> None:
        jobs: list[str] = given["job"] or []
        chosen = _chosen(given)
        caller = find_caller(given["app"], given["url"])
        if chosen is None:
            how = {"reason": given["reason"], "by": given["by"]}
            own_values = [given[each.name] for each in own]
            _control(caller, jobs, given["output"], lambda handle: do(handle, *own_values, **how))
        elif any(given[each.name] is not None for each in own):
            refuse("--from names a step of one job: pass the JOB", Code.USAGE)
        else:
            who = given["by"], given["reason"]
            _command_all(caller, action, chosen, who, (given["dry_run"], given["output"]))

    shared = signature(_shared)
    command.__doc__ = text
    command.__signature__ = shared.replace(parameters=[*shared.parameters.values(), *own])
    command.__annotations__ = {
        **_shared.__annotations__,
        **{each.name: each.annotation for each in own},
    }
    return command


cancel = _command_of(
    "cancel", "Cancel jobs, or all that match; running steps are stopped.", Handle[Any].cancel
)
pause = _command_of(
    "pause",
    "Pause jobs, or all that match: running steps finish, and nothing more runs.",
    Handle[Any].pause,
)
resume = _command_of(
    "resume",
    "Resume jobs that are paused or need attention, or all that match.",
    Handle[Any].resume,
)
retry = _command_of(
    "retry",
    "Retry failed jobs from where they failed, or all that match; finished steps stay done.",
    Handle[Any].retry,
    Parameter(
        "step",
        Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option("--from", help="Start with this step of JOB, such as `load#2`."),
        ],
    ),
)


def _chosen(given: dict[str, Any]) -> JobQuery | None:
    """Return which jobs are meant; None if they are named."""
    by_options = any(given[each] for each in _CHOOSING)
    if given["job"]:
        if by_options or given["every"] or given["dry_run"]:
            refuse("name a JOB, or choose jobs by options, but not both", Code.USAGE)
        return None
    if by_options == given["every"]:
        ways = "--query, --state, --name, --tenant, --queue or --label"
        refuse(
            f"which jobs? Name a JOB, or choose them by {ways}, or --all for all jobs of the store",
            Code.USAGE,
        )
    query, state, label, name, tenant, queue = (given[each] for each in _CHOOSING)
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
    one = len(report.affected) == 1 and not dry_run
    say(
        f"{counted(len(report.affected), 'job')} {would}{'gets' if one else 'get'} the command "
        f"to {action}, {len(report.refused)} {would}refuse it"
    )


async def _commanded(
    caller: Caller, action: BulkAction, query: JobQuery, how: tuple[str, str, bool]
) -> BulkReport:
    by, reason, dry_run = how
    async with caller:
        with progress(f"{action} jobs") as work:
            return await caller.command_jobs(
                action, query, by=by, reason=reason, dry_run=dry_run, on_progress=work.set
            )


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
