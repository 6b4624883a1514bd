"""Many jobs in one table."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from perdure.cli.jobs import words
from perdure.cli.jobs.find import short
from perdure.cli.output import cell
from perdure.jobs.model import Job

_NARROW = 70  # characters of what a job waits for, or of its error


def draw_jobs(jobs: Sequence[Job], now: float) -> Table:
    """Draw jobs, one on a line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "job", "state", "submitted", "took", ""):
        table.add_column(name, no_wrap=name in ("id", "state", "submitted"))
    for job in jobs:
        table.add_row(
            short(job.id),
            cell(_name(job)),
            words.state(job.state),
            words.ago(job.created_at, now),
            words.between(job.started_at, job.ended_at, now),
            _said(job, now),
        )
    return table


def counted(counts: Mapping[str, int]) -> str:
    """Spell how many jobs there are."""
    total = sum(counts.values())
    if not total:
        return "There are no jobs."
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()) if count)
    return f"{total} in all: {states}"


def _name(job: Job) -> str:
    return job.name if job.tenant == "default" else f"{job.name} of {job.tenant}"


def _said(job: Job, now: float) -> Text:
    if job.request:
        return cell(f"{job.request} asked for", style="yellow")
    if job.error is not None:
        return cell(words.failure(job.error, _NARROW), style="red")
    if job.wait is not None:
        return cell(words.cut(f"waits for {words.waits(job.wait, now)}", _NARROW))
    return Text()
