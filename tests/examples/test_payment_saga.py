"""The saga of an order: it fails at each place, and is killed in the middle of its undo."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FORWARD = ["payment", "reservation", "confirmation mail"]
BACK = ["cancellation mail", "release", "refund"]


def order(folder: Path, broken: str, crash: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PERDURE_URL": f"sqlite:///{folder / 'jobs.db'}",
        "SERVICE_FILE": str(folder / "world"),
        "PERDURE_CRASH_AT": crash,
    }
    command = [sys.executable, "-m", "examples.payment_saga", broken]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False
    )


def deeds(folder: Path) -> list[str]:
    return [line.rpartition(" ")[0] for line in (folder / "world").read_text().splitlines()]


@pytest.mark.parametrize(
    ("broken", "done", "undone"),
    [
        ("", FORWARD, None),
        ("reserve", ["payment", "refund"], "reserve#1, pay#1"),
        ("confirm", [*FORWARD[:2], "release", "refund"], "confirm#1, reserve#1, pay#1"),
        ("end", [*FORWARD, *BACK], "confirm#1, reserve#1, pay#1"),
    ],
)
def test_an_order_that_fails_is_undone_in_the_reverse_order(
    tmp_path: Path, broken: str, done: list[str], undone: str | None
) -> None:
    said = order(tmp_path, broken).stdout.splitlines()
    assert deeds(tmp_path) == done
    if undone is None:
        assert said[-1] == "order 7 is COMPLETED"
    else:
        assert said[-2:] == ["order 7 is COMPENSATED", f"undone: {undone}"]


def test_an_order_whose_payment_fails_undoes_nothing(tmp_path: Path) -> None:
    assert "order 7 is COMPENSATED" in order(tmp_path, "pay").stdout
    assert not (tmp_path / "world").exists()


@pytest.mark.parametrize("point", ["before_undo:2", "after_call:5", "after_undo:2"])
def test_a_crash_in_the_middle_of_the_undo_neither_repeats_nor_skips_anything(
    tmp_path: Path, point: str
) -> None:
    assert order(tmp_path, "end", point).returncode == -9
    assert deeds(tmp_path) != [*FORWARD, *BACK]
    assert "order 7 is COMPENSATED" in order(tmp_path, "end").stdout
    assert deeds(tmp_path) == [*FORWARD, *BACK]
