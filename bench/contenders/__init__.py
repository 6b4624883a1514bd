"""The contenders, one module each; listed here without being imported."""

import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contender:
    """A library that is measured.

    Attributes:
        name: Its module in this package, and its name in every table.
        package: What must be importable for it to be measured.
        programs: What must be on the PATH for it to be measured.
        share: The part of the operations that it runs, so that a slow one does not prolong the run;
            figures are for each operation.
        most: The most operations that it can do of some workloads.
    """

    name: str
    package: str | None = None
    programs: tuple[str, ...] = ()
    share: float = 1.0
    most: Mapping[str, int] = field(default_factory=dict[str, int])

    def size(self, workload: str, n: int) -> int:
        """Return how many of ``n`` operations this contender runs."""
        return min(max(1, round(n * self.share)), self.most.get(workload, sys.maxsize))

    def installed(self) -> bool:
        """Whether it can be measured here; nothing is imported or run."""
        importable = self.package is None or importlib.util.find_spec(self.package) is not None
        return importable and all(shutil.which(program) for program in self.programs)

    def version(self) -> str:
        """Return the version of the distribution; empty for what Python did not install."""
        try:
            return importlib.metadata.version(self.package or "")
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return ""


OURS = Contender("perdure", "perdure")
RAW_ASYNCIO = Contender("raw_asyncio", "asyncio")
PEERS = (
    Contender("aioerl", "aioerl", share=0.1),
    # A longer chain overflows the stack: its exit signals travel by recursion.
    Contender("otpylib", "otpylib", share=0.1, most={"cascade": 300}),
    Contender("fauxtp", "fauxtp", share=0.1),
    Contender("triotp", "triotp", share=0.1),
)
BEAM = Contender("beam", programs=("erl", "erlc"))


def choose(known: Sequence[Contender], only: Sequence[str]) -> tuple[list[Contender], list[str]]:
    """Return the wanted contenders that are installed, and the names of those that are not.

    Raises:
        ValueError: A name in ``only`` is unknown.
    """
    names = [one.name for one in known]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ValueError(f"no such contender: {', '.join(unknown)}; there are {', '.join(names)}")
    wanted = [one for one in known if not only or one.name in only]
    present = [one for one in wanted if one.installed()]
    return present, [one.name for one in wanted if one not in present]
