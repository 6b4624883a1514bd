"""The list of all source files, made from their docstrings: `docs/files.md`.

`python -m tests.support.file_list --write` writes the page anew.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "perdure"
PAGE = ROOT / "docs" / "files.md"
REWRITE = "run `python -m tests.support.file_list --write`"

HEAD = """\
# Every file

Each file with the first sentence of its docstring. The page is generated:
`python -m tests.support.file_list --write`.
[The architecture](ARCHITECTURE.md) explains how the folders fit together.
"""


def page() -> str:
    """Return the whole page, one section for each folder."""
    sections = (section(folder) for folder in folders(SOURCE))
    return HEAD + "".join(f"\n{text}" for text in sections)


def folders(folder: Path) -> Iterator[Path]:
    """Return a folder and all packages below it, in the order of their names."""
    yield folder
    for each in sorted(folder.iterdir()):
        if (each / "__init__.py").is_file():
            yield from folders(each)


def section(folder: Path) -> str:
    """Return the heading of a folder, what it is, and a row for each of its files."""
    name = folder.relative_to(SOURCE.parent).as_posix()
    files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    rows = "".join(f"| `{path.name}` | {summary(path)} |\n" for path in files)
    table = f"\n| file | what it is |\n|---|---|\n{rows}" if rows else ""
    return f"## `{name}/`\n\n{summary(folder / '__init__.py')}\n{table}"


def summary(path: Path) -> str:
    """Return the first sentence of the docstring, on one line."""
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(doc.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    PAGE.write_text(page(), "utf-8")
