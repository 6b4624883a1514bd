"""Run trials in rounds, each in a fresh process of the operating system, and take medians.

A trial is a command whose last line of output is a JSON object:
``{"value": 1.2e-06}``, or ``{"unsupported": "why"}`` when the contender has no such thing.
Rounds are interleaved, so a machine that is slow for a while slows down every contender.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

Key = tuple[str, str]


class TrialFailed(Exception):
    """The trial gave no figure; the text says why."""


@dataclass(frozen=True)
class Trial:
    """One measurement of one contender, to be repeated in each round."""

    contender: str
    workload: str
    command: tuple[str, ...]

    @property
    def key(self) -> Key:
        """Return the cell of the table that this trial fills."""
        return self.contender, self.workload


@dataclass
class Results:
    """The samples of every trial, and why some have none."""

    samples: dict[Key, list[float]] = field(default_factory=dict[Key, list[float]])
    skipped: dict[Key, str] = field(default_factory=dict[Key, str])

    def median(self, contender: str, workload: str) -> float | None:
        """Return the median of a trial, or None where it was skipped."""
        samples = self.samples.get((contender, workload))
        return statistics.median(samples) if samples else None

    def skip(self, trial: Trial, reason: str) -> None:
        """Drop a trial for good: figures of only some rounds would not be comparable."""
        self.samples.pop(trial.key, None)
        self.skipped[trial.key] = reason


def run_rounds(
    trials: Sequence[Trial],
    rounds: int,
    time_limit: float,
    measure: Callable[[Trial, float], float] | None = None,
) -> Results:
    """Run every trial once in each round.

    A trial that fails or reaches the time limit is skipped in later rounds,
    so a contender that hangs costs one time limit and no more.
    """
    measure = measure or run_trial
    results = Results()
    for number in range(1, rounds + 1):
        for trial in trials:
            if trial.key in results.skipped:
                continue
            show(f"round {number}/{rounds}: {trial.workload}, {trial.contender}")
            try:
                value = measure(trial, time_limit)
            except TrialFailed as failure:
                results.skip(trial, str(failure))
            else:
                results.samples.setdefault(trial.key, []).append(value)
    show("")
    return results


def run_trial(trial: Trial, time_limit: float) -> float:
    """Run the command of a trial and return its figure.

    Raises:
        TrialFailed: It crashed, hung, printed no figure or said that it has none to give.
    """
    return _figure(run_command(trial.command, time_limit))


def run_command(
    command: Sequence[str], time_limit: float, env: Mapping[str, str] | None = None
) -> str:
    """Run a command and return the last line that it prints.

    Raises:
        TrialFailed: It crashed or hung.
    """
    try:
        done = subprocess.run(  # the commands are our own
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TrialFailed(f"gave no figure within {time_limit:g} s") from None
    except OSError as error:
        raise TrialFailed(str(error)) from error
    if done.returncode:
        raise TrialFailed(f"ended with status {done.returncode}: {_last_line(done.stderr)}")
    return _last_line(done.stdout)


def _figure(line: str) -> float:
    try:
        answer: Mapping[str, Any] = json.loads(line)
        if "unsupported" in answer:
            raise TrialFailed(str(answer["unsupported"]))
        return float(answer["value"])
    except (ValueError, KeyError, TypeError) as error:
        raise TrialFailed(f"printed no figure: {line!r}") from error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def show(progress: str) -> None:
    """Show progress on a terminal; the next line overwrites it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)
