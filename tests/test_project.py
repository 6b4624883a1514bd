"""The files around the code agree with it, and with each other."""

import importlib.util
import os
import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

import perdure

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\]", re.MULTILINE)
PLACEHOLDER = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")
PROGRAMME = re.compile(r"-m tests\.programmes\.(\w+)")
OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def project() -> dict[str, Any]:
    return tomllib.loads(text_of("pyproject.toml"))


def workflow() -> dict[str, Any]:
    return yaml.safe_load(text_of(".github/workflows/ci.yml"))


def commands(job: dict[str, Any]) -> Iterator[str]:
    """Yield what a job runs, once for each combination of its matrix."""
    matrix: dict[str, list[str]] = job.get("strategy", {}).get("matrix", {})
    runs = "\n".join(step["run"] for step in job["steps"] if "run" in step)
    for values in product(*matrix.values()):
        chosen = dict(zip(matrix, values, strict=True))
        filled = [chosen[part] if i % 2 else part for i, part in enumerate(PLACEHOLDER.split(runs))]
        yield from "".join(filled).splitlines()


ALL_COMMANDS = sorted({line for job in workflow()["jobs"].values() for line in commands(job)})


# The version


def test_the_version_is_written_in_one_place() -> None:
    assert "version" not in project()["project"]
    assert project()["tool"]["hatch"]["version"]["path"] == "src/perdure/__init__.py"
    assert f'__version__ = "{perdure.__version__}"' in text_of("src/perdure/__init__.py")


def test_the_newest_section_of_the_changelog_is_of_this_version() -> None:
    assert RELEASE.findall(text_of("CHANGELOG.md"))[0] == perdure.__version__


# The workflow of the hosted CI


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_a_command_of_the_workflow_exists(command: str) -> None:
    words = command.split()
    if words[0] == ".venv/bin/python":
        assert words[1] == "-m"
        assert importlib.util.find_spec(words[2]), f"there is no module {words[2]}"
        source = text_of(words[2].replace(".", "/") + ".py")
    else:
        script = ROOT / words[0]
        assert os.access(script, os.X_OK), f"{words[0]} cannot be run"
        source = script.read_text("utf-8")
    for option in OPTION.findall(command):  # those with one dash are pytest's
        assert option in source, f"{words[0]} does not know {option}"


def test_the_workflow_tests_every_python_that_the_package_names() -> None:
    named = [
        found[1]
        for line in project()["project"]["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
    ]
    jobs = workflow()["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == named
    assert jobs["package"]["strategy"]["matrix"]["python"] == named


def test_every_long_programme_of_the_page_for_contributors_runs_at_night() -> None:
    told = set(PROGRAMME.findall(text_of("CONTRIBUTING.md")))
    run = {found[1] for line in ALL_COMMANDS if (found := PROGRAMME.search(line))}
    assert told == run != set()


# Scripts and hooks


def test_every_script_is_told_to_contributors() -> None:
    page = text_of("CONTRIBUTING.md")
    scripts = {path.name for path in (ROOT / "scripts").iterdir() if not path.suffix}
    scripts -= {"find-python"}  # the other scripts call it
    assert [name for name in sorted(scripts) if f"`scripts/{name}" not in page] == []


def test_the_hooks_use_tools_of_the_development_environment() -> None:
    tools = " ".join(project()["project"]["optional-dependencies"]["dev"])
    names = {"lint-imports": "import-linter"}
    for repository in yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            tool = hook["entry"].split()[0].removeprefix(".venv/bin/")
            assert f"{names.get(tool, tool)}>=" in tools
