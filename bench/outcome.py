"""What the command hands to a benchmark, and what a benchmark hands back."""

from collections.abc import Mapping
from dataclasses import dataclass


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
    """A bound that a figure should keep; missing it is reported and fails nothing."""

    bound: float
    at_most: bool = False

    def met(self, figure: float) -> bool:
        """Judge a figure by this goal."""
        return figure <= self.bound if self.at_most else figure >= self.bound

    def __str__(self) -> str:
        """Give the bound as a reader expects it: ``>= 3``."""
        return f"{'<=' if self.at_most else '>='} {self.bound:,g}"
