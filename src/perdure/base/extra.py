"""Optional dependencies: one that is missing is named with the extra that installs it."""

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def extra(name: str, what: str) -> Generator[None, None, None]:
    """Import inside the block what only an extra installs.

    Args:
        name: The extra.
        what: What needs it, as the beginning of a sentence.

    Raises:
        ModuleNotFoundError: It is not installed; the message says what to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "perdure").partition(".")[0] == "perdure":
            raise  # not a dependency, but a mistake of ours
        text = f"{what} needs {error.name}: pip install 'perdure[{name}]'"
        raise ModuleNotFoundError(text, name=error.name, path=error.path) from None
