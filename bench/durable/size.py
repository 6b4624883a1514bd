"""How much of a workload is run, and what comes of it."""

from dataclasses import dataclass

Figures = dict[str, float]


@dataclass(frozen=True)
class Size:
    """How much of each; ``limit`` is in seconds for each wait."""

    steps: int = 1_000
    jobs: int = 1_000
    steps_of_a_job: int = 10
    submits: int = 0
    limit: float = 30.0
