"""The page as it is built: small, whole, and without anything that its policy forbids."""

import gzip
import re
import tomllib
from pathlib import Path

import pytest

from perdure.web import page

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "src" / "perdure" / "web" / "static"
MOST = 120 * 1024  # bytes, gzipped

SENT = sorted(path for path in BUILT.rglob("*") if path.suffix in {".html", ".js", ".css", ".svg"})
FOREIGN = re.compile(r"https?://(?!www\.w3\.org/)[\w.-]+")  # a namespace is not an address


def test_the_whole_page_is_small() -> None:
    packed = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in SENT}
    assert len(packed) >= 4
    assert sum(packed.values()) <= MOST, packed


def test_what_the_page_names_is_there() -> None:
    html = (BUILT / "index.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="/([^"]+)"', html)
    assert len(named) == 3
    assert [name for name in named if not (BUILT / name).is_file()] == []


def test_the_page_has_nothing_inline() -> None:
    html = (BUILT / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*src=)|<style| style=| on\w+=", html) == []


def test_the_page_names_no_other_host() -> None:
    found = {path.name: FOREIGN.findall(path.read_text("utf-8")) for path in SENT}
    assert {name: hosts for name, hosts in found.items() if hosts} == {}


def test_the_licences_of_what_is_bundled_come_with_it() -> None:
    text = (BUILT / "LICENSES.txt").read_text("utf-8")
    for name in ("preact", "@preact/signals"):
        assert re.search(rf"^{name} \d", text, re.MULTILINE)
    assert text.count("Permission is hereby granted") >= 2


def test_the_page_comes_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/perdure"]
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()  # hatchling leaves these out
    assert not {"static/", "assets/", "*.js", "*.css"} & set(ignored)
    assert page.STATIC.joinpath("index.html").is_file()
