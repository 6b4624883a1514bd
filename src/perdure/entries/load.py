"""`load_yaml` and `load_entries`: from files or a mapping to entries that can be run."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perdure.base.errors import EntriesError, Mistake
from perdure.entries.catalogue import make_plan
from perdure.entries.document import Document
from perdure.entries.loaded import Loaded
from perdure.entries.model import INDEX
from perdure.entries.yaml_file import read_file

MOST_FILES = 1_000  # in one folder: more is a wrong folder, such as the root of a disk
MOST_FOLDERS = 50_000


def load_yaml(path: str | os.PathLike[str]) -> Loaded:
    """Load a file, or every `_index.yaml` in a folder and below it.

    Nothing is started, and no code of the entries is run yet.

    Raises:
        EntriesError: There are mistakes: all of them, each with its file and line.
    """
    given = Path(path)
    files = list(_index_files(given)) if given.is_dir() else [given]
    if not files:
        text = f"there is no {INDEX} in this folder or below it: write one"
        raise EntriesError([Mistake(str(given), 0, "", text)])
    read = [read_file(file) for file in files]
    documents = [each for each in read if isinstance(each, Document)]
    mistakes = [each for each in read if isinstance(each, Mistake)]
    return Loaded(make_plan(documents, mistakes))


def load_entries(
    *mappings: Mapping[str, Any], folder: str | os.PathLike[str] = ".", name: str = "<mapping>"
) -> Loaded:
    """Load entries from mappings, each with what would stand in a file.

    Args:
        *mappings: With version, namespace and entries.
            A `source` may also be an `async def` function itself.
        folder: Where `file://` begins.
        name: Names the mapping in messages.

    Raises:
        EntriesError: There are mistakes: all of them.
    """
    return Loaded(make_plan(Document(name, Path(folder), dict(each), {}) for each in mappings))


def _index_files(folder: Path) -> Iterator[Path]:
    """Find the files, the upper ones first; hidden folders hold none of ours."""
    files = 0
    for seen, (here, below, names) in enumerate(os.walk(folder)):
        below[:] = sorted(name for name in below if not name.startswith((".", "__")))
        if INDEX in names:
            files += 1
            yield Path(here) / INDEX
        if seen > MOST_FOLDERS or files > MOST_FILES:
            text = f"more than {MOST_FILES:,} files or {MOST_FOLDERS:,} folders: name a smaller one"
            raise EntriesError([Mistake(str(folder), 0, "", text)])
