"""The child processes of a test, apart from those that others of the same run have left running."""

from pathlib import Path


class Offspring:
    """Those that came since this was made, dead ones that nobody waited for too."""

    def __init__(self) -> None:
        self._others = _children()

    def __call__(self) -> list[int]:
        return sorted(_children() - self._others)


def _children() -> set[int]:
    return {child for task in Path("/proc/self/task").iterdir() for child in _children_of(task)}


def _children_of(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # a thread that has ended since it was listed
        return []
