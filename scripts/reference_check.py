"""A hook of mkdocs: a public name that is missing in the built reference is a warning.

With `mkdocs build --strict`, as in `scripts/docs`, the warning is an error.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("mkdocs.hooks.reference_check")
_ANCHOR = re.compile(r'id="(perdure[\w.]*)"')
_ROOT = Path(__file__).parent.parent


def on_post_build(config: dict[str, str]) -> None:
    """Compare the anchors of the pages with the list of public names."""
    site = Path(config["site_dir"]) / "reference"
    for name in _missing(site, (_ROOT / "tests/public_api.txt").read_text("utf-8").splitlines()):
        _log.warning("the reference does not show %s", name)


def _missing(site: Path, public: list[str]) -> Iterator[str]:
    for line in public:
        module, name = line.split(": ")
        if module == "perdure" and (site / name).is_dir():
            continue  # a module with a page of its own
        page = site / module.rpartition(".")[2] / "index.html"
        anchors = _ANCHOR.findall(page.read_text("utf-8")) if page.exists() else []
        # A function with the name of a module beside it is shown from the module it stands in.
        shown = re.compile(rf"{module}\.([a-z_]+\.)?{name}")
        if not any(map(shown.fullmatch, anchors)):
            yield f"{module}.{name}"
