"""Settings by flag, environment and files, in this order."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.base.settings import COMMAND_LINE
from perdure.cli.config import PREFIX, SETTINGS
from tests.support.cli import ROOT


def perdure(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "perdure", *words],
        cwd=folder,
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def shown(folder: Path, **environ: str) -> dict[str, tuple[Any, str]]:
    done = perdure(folder, "config", "show", "-o", "json", **environ)
    assert done.returncode == 0, done.stderr
    return {each["name"]: (each["value"], each["origin"]) for each in json.loads(done.stdout)}


def test_the_environment_counts_before_the_file_and_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    (tmp_path / "perdure.toml").write_text('url = "sqlite:///a.db"\nport = 9000\n')
    found = shown(tmp_path)
    assert found["url"] == ("sqlite:///a.db", str(tmp_path / "perdure.toml"))
    assert found["port"] == ("9000", str(tmp_path / "perdure.toml"))
    assert found["log_level"] == ("info", "default")
    found = shown(tmp_path, PERDURE_URL="sqlite:///b.db")
    assert found["url"] == ("sqlite:///b.db", "environment: PERDURE_URL")


def test_commands_use_the_file_and_a_flag_counts_before_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.perdure]\nurl = "sqlite:///a.db"\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    assert f"no file {tmp_path / 'a.db'}" in perdure(inner, "jobs", "list").stderr
    assert (
        f"no file {inner / 'b.db'}"
        in perdure(inner, "jobs", "list", "--url", "sqlite:///b.db").stderr
    )


def test_a_project_without_settings_does_not_take_those_of_the_folder_above(
    tmp_path: Path,
) -> None:
    (tmp_path / "perdure.toml").write_text('url = "sqlite:///a.db"\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[project]\n")
    assert shown(inner)["url"] == ("", "default")


def test_a_secret_comes_from_a_file_of_its_own_and_is_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("postgresql://kim:hunter2@db/jobs\n")
    value, origin = shown(tmp_path, PERDURE_URL_FILE=str(secret))["url"]
    assert origin == "environment: PERDURE_URL_FILE"
    assert "hunter2" not in value
    assert "kim" in value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('ulr = "x"', "did you mean url?"),
        ("nonsense = 1", "there are url, app"),
        ("port = true", "must be a text or a number"),
        ("port = [", "cannot be read"),
        ('url = "postgresql://kim:hunter2@db/jobs"', "a password does not belong"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "perdure.toml").write_text(text)
    done = perdure(tmp_path, "jobs", "list")
    assert done.returncode == 2
    assert why in done.stderr
    assert "hunter2" not in done.stderr


def test_the_runtime_takes_no_variable_of_the_command_line_for_its_own() -> None:
    assert {PREFIX + name.upper() for name in SETTINGS} == COMMAND_LINE
