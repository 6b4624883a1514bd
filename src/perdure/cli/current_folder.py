"""The folder in which a command is given: modules in it can be imported, as by `python -m`."""

import os
import sys


def import_from_here() -> str:
    """Let modules of the current folder be found; give the folder."""
    here = os.getcwd()  # noqa: PTH109  as it stands in sys.path
    if here not in sys.path:
        sys.path.insert(0, here)
    return here
