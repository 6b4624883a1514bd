"""What the command hands to a benchmark, and what a benchmark hands back."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from bench.table import render


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    quick: bool = False
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A text for people and figures for programs.

    Attributes:
        text: What people read.
        figures: What programs read.
        only_figures: Whether ``--json`` prints the bare figures and nothing else.
    """

    text: str
    figures: Mapping[str, float | Mapping[str, float]]
    only_figures: bool = False


@dataclass(frozen=True)
class Goal:
    """A bound for a figure; missing it is reported, and fails nothing."""

    bound: float
    at_most: bool = False

    def met(self, figure: float) -> bool:
        """Whether a figure meets this goal."""
        return figure <= self.bound if self.at_most else figure >= self.bound

    def __str__(self) -> str:
        """Return the bound as a reader expects it: ``>= 3``."""
        return f"{'<=' if self.at_most else '>='} {self.bound:,g}"


def machine() -> str:
    """Return what the figures depend on: the interpreter and the machine."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def figure_table(figures: Mapping[str, float], goals: Mapping[str, Goal]) -> str:
    """Show every figure, beside its goal if it has one."""
    if not figures:
        return "No figures: Perdure itself was not measured."
    rows = [_figure_row(name, value, goals.get(name)) for name, value in figures.items()]
    return render(["figure", "value", "goal", ""], rows)


def _figure_row(name: str, value: float, goal: Goal | None) -> list[str]:
    verdict = "" if goal is None else "met" if goal.met(value) else "MISSED"
    return [name, f"{value:,.2f}", str(goal or ""), verdict]
