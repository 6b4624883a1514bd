"""`perdure jobs`: the commands of the group; each module is loaded when its command is given.

Each command that changes a job is written to the log of the job, with who gave it and why.
"""

import importlib
from typing import Final

import typer

# The module and the function of each command, and what help says of it.
COMMANDS: Final = {
    "list": ("show", "list_jobs", "List jobs, newest first."),
    "show": ("show", "show", "Show a job: its journal, what it waits for, its log."),
    "watch": ("watch", "watch", "Watch a job until it ends or needs a person, or all jobs."),
    "output": ("emitted", "output", "Print what a job has emitted."),
    "cancel": ("bulk", "cancel", "Cancel jobs, or all that match."),
    "pause": ("bulk", "pause", "Pause jobs, or all that match."),
    "resume": ("bulk", "resume", "Resume jobs that are paused or need attention."),
    "retry": ("bulk", "retry", "Retry failed jobs from where they failed, or all that match."),
    "compensate": ("single", "compensate", "Undo jobs that failed or need attention."),
    "skip": ("single", "skip", "Mark a step as done, because somebody did it by hand."),
    "skip-item": ("single", "skip_item", "Leave out the item at which a step has failed."),
    "abandon-undo": ("single", "abandon_undo", "Continue an undo without a failed part."),
    "fork": ("single", "fork", "Submit a copy of a job from one of its steps on."),
    "send": ("single", "send", "Send a message to a job."),
    "export": ("replay", "export", "Print a job and its journal as JSON."),
    "bundle": ("bundle", "bundle", "Print all that people may see of a job, without secrets."),
    "import": ("bundle", "import_", "Store a job of another store, to look at it."),
    "replay": ("replay", "replay", "Check that today's code fits the journal of a job."),
}


def add_to(app: typer.Typer, only: str | None = None) -> None:
    """Add the group with all of its commands, or with one of them.

    With a word that is none of them, which asks for help, the commands only have their names.
    """
    group = typer.Typer(help="List, show, watch and control jobs.", no_args_is_help=True)
    for name in [only] if only in COMMANDS else COMMANDS:
        module, function, text = COMMANDS[name]
        if only is None or only in COMMANDS:
            found = importlib.import_module(f"perdure.cli.jobs.{module}")
            group.command(name)(getattr(found, function))
        else:
            group.command(name, help=text)(_nothing)
    app.add_typer(group, name="jobs")


def _nothing() -> None:
    """Stand for a command."""
