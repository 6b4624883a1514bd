"""The jobs: most are harmless, some crash the worker that does them."""

from dataclasses import dataclass

from perdure.process import sleep


@dataclass(frozen=True)
class Job:
    """Something to do, and the number of the attempt."""

    number: int
    attempt: int = 1

    def __str__(self) -> str:
        return f"job {self.number}"

    @property
    def is_flaky(self) -> bool:
        """Whether it fails at the first attempt."""
        return self.number % 10 == 7

    @property
    def is_poisoned(self) -> bool:
        """Whether it fails at every attempt."""
        return self.number % 25 == 13


async def perform(job: Job) -> str:
    """Do the job; a real one would call another server here."""
    await sleep("300ms")
    if job.is_poisoned:
        raise ValueError(f"{job} is poisoned")
    if job.is_flaky and job.attempt == 1:
        raise ConnectionError(f"{job} lost its connection")
    return f"completed: {job}"
