"""What breaks no rule and hurts all the same: its signs in a store and in definitions; pure.

The SQL that finds the signs in a store has their names, in `store/sql/anti_pattern.sql`, and gets
`LIMITS_OF_SIGNS`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from perdure.jobs.definition import JobDefinition, Step
from perdure.jobs.gate import Gate, GatePolicy
from perdure.jobs.invariant import Invariant, Violation
from perdure.jobs.risk import RiskLevel

HOUR, DAY = 3600.0, 86400.0

# From where on something is a sign. Times are seconds, sizes are bytes.
LIMITS_OF_SIGNS: Final[Mapping[str, float]] = {
    "ended_jobs": 1000,  # ended jobs that are looked at, the last ones, beside all that have not
    "entries": 10_000,
    "replayed": 1_000_000,  # entries that were read again, over all claims
    "result_bytes": 1024 * 1024,
    "checkpoint_bytes": 10 * 1024,
    "attempts": 20,  # as many as the default makes, even if another system is down
    "silence": HOUR,  # of a step that runs
    "doubt": HOUR,
    "unanswered": 3 * DAY,
    "waited": 7 * DAY,  # for a message
    "given_up": 7 * DAY,  # notices that were given up since
    "paused": DAY,
    "crashes": 3,  # in a row, without progress
    "lateness": 300,
    "expired": 60,  # living workers notice it sooner
    "dead": 120,  # four heartbeats
}

SIGNS: Final = tuple(
    Invariant(*each)
    for each in (
        (
            "expired_leases",
            "A worker takes over when the lease of another one has expired.",
            "start a worker that knows the job (`perdure worker`); `perdure workers` lists them",
        ),
        (
            "silent_workers",
            "A worker that owns jobs sends heartbeats.",
            "look whether it is stopped, blocked or cut off; kill it if it does not come back",
        ),
        (
            "crashing_jobs",
            "A job makes progress each time that a worker claims it.",
            'find what kills the worker in its log; isolation="process" keeps a crash in the step',
        ),
        (
            "silent_steps",
            "A step that runs for long has a timeout, or reports progress.",
            "give it timeout=, or call ctx.progress; `perdure jobs cancel JOB` if it hangs",
        ),
        (
            "long_journals",
            "A journal has fewer than ten thousand entries.",
            "end the loop with ctx.continue_as, use ctx.items, or divide the work among children",
        ),
        (
            "costly_replays",
            "A job is not replayed again and again over a long journal.",
            "wait with ctx.receive instead of a loop of ctx.sleep, or end it with ctx.continue_as",
        ),
        (
            "large_results",
            "A step returns less than a megabyte.",
            "store it elsewhere in the step, and return where it is",
        ),
        (
            "large_checkpoints",
            "A checkpoint is a cursor, not the results so far.",
            "return results from steps of their own, and keep only the position",
        ),
        (
            "many_attempts",
            "A step succeeds or fails within twenty attempts.",
            "raise Permanent for what a retry cannot help, and make fewer attempts",
        ),
        (
            "long_doubts",
            "Somebody resolves an effect in doubt within an hour.",
            "ask the receiver, then `perdure effects resolve JOB NO --happened` or `--did-not`",
        ),
        (
            "unanswered_approvals",
            "Somebody answers an approval within three days.",
            "`perdure approvals list`; give it `expires`, and a channel that reaches people",
        ),
        (
            "endless_waits",
            "A job that waits for a message has a limit.",
            "pass timeout= to ctx.receive, or give the job a timeout; `perdure jobs send` ends it",
        ),
        (
            "overlapping_runs",
            "A run of a schedule ends before the next one begins.",
            "run it less often, make it faster, or give the job a timeout",
        ),
        (
            "late_schedules",
            "A schedule submits its job when it is due.",
            "start a worker: schedules are run by workers (`perdure workers`)",
        ),
        (
            "given_up_notices",
            "Notices reach the people they are for.",
            "look at the settings of the channel, and whether its server answers",
        ),
        (
            "forgotten_queues",
            "A queue is not paused for more than a day while jobs wait in it.",
            "`perdure queues resume QUEUE`, or cancel the jobs",
        ),
    )
)

# What the definitions of an app show.
SIGNS_OF_CODE: Final = tuple(
    Invariant(*each)
    for each in (
        (
            "costly_without_timeout",
            "A step that costs money, such as a model call, has a timeout.",
            "give it timeout=: nobody else can tell a dead connection from a slow answer",
        ),
        (
            "long_without_progress",
            "A step that takes hours has a timeout, or a context to report progress with.",
            "give it timeout=, or let it take a StepContext and call ctx.progress",
        ),
        (
            "costly_without_budget",
            "A job whose steps cost money has a budget.",
            "@app.job(budget=BudgetLimits(usd=…)): beyond it, a person is asked",
        ),
        (
            "irreversible_without_gate",
            "A person approves what cannot be undone.",
            'remove approval="never", or ask first: await ctx.approve(…)',
        ),
        (
            "open_gates",
            "A person approves what is of HIGH or CRITICAL risk.",
            "let GatePolicy(gates=…) wait at HIGH and CRITICAL",
        ),
        (
            "many_retries",
            "A step is attempted at most twenty times.",
            "raise Permanent for what a retry cannot help, and lower Retry(attempts=…)",
        ),
    )
)


def signs_of_code(
    jobs: Iterable[JobDefinition[..., Any]], steps: Iterable[Step[..., Any]], gates: GatePolicy
) -> list[Violation]:
    """Return the signs in the definitions of an app; none of them is about one job."""
    known = sorted(steps, key=lambda step: step.name)
    found = [Violation(sign, "", what) for step in known for sign, what in _of_step(step)]
    costly = [step.name for step in known if step.cost]
    unlimited = sorted(job.name for job in jobs if job.budget is None)
    if costly and unlimited:
        what = f"step {costly[0]} costs money, and no budget limits {', '.join(unlimited)}"
        found.append(Violation("costly_without_budget", "", what))
    return [*found, *_of_gates(gates)]


def _of_step(step: Step[..., Any]) -> Iterator[tuple[str, str]]:
    if step.timeout is None and step.cost:
        yield "costly_without_timeout", f"step {step.name} has a cost and no timeout"
    lasts = step.estimated_duration or 0.0
    if step.timeout is None and not step.takes_context and lasts >= HOUR:
        yield "long_without_progress", f"step {step.name} is expected to take {lasts / HOUR:g} h"
    if step.irreversible and step.approval == "never":
        yield "irreversible_without_gate", f'step {step.name} has approval="never"'
    if step.retry is not None and step.retry.attempts > LIMITS_OF_SIGNS["attempts"]:
        yield "many_retries", f"step {step.name} is attempted {step.retry.attempts} times"


def _of_gates(gates: GatePolicy) -> Iterator[Violation]:
    for level in (RiskLevel.HIGH, RiskLevel.CRITICAL):
        for tenant in ("", *gates.tenants):
            if gates.gate(level, tenant) is not Gate.WAIT:
                whose = f" of tenant {tenant}" if tenant else ""
                yield Violation("open_gates", "", f"{level} risk{whose} waits for nobody")
