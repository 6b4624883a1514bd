"""Writes folders of entries for tests."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent

HEAD = 'version: "1.0"\nnamespace: app\nentries:\n'  # entries begin at line 4


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files, whose texts may be indented as the test is."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"), "utf-8")
    return folder


def index(entries: str, namespace: str = "app") -> str:
    """Give the text of a file with these entries, the first of them at line 4."""
    body = indent(dedent(entries).strip("\n"), "  ")
    return HEAD.replace("namespace: app", f"namespace: {namespace}") + body + "\n"
