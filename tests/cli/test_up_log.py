"""What `perdure up` tells of its entries, in words for people."""

import io

import pytest
from rich.console import Console

from perdure.base.clock import SystemClock
from perdure.cli.up import UpLog
from perdure.entries.service import ENTRY_EVENT


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"state": "running", "kind": "os", "workers": 1}, "running     os, 1 worker"),
        ({"state": "running", "kind": "threads", "workers": 4}, "running     threads, 4 workers"),
        (
            {"state": "restarting", "reason": ValueError("x"), "starts": 1, "delay": 0.0015},
            "restarting  ValueError: x; start 2 in 1.5ms",
        ),
        (  # it had been stable, so that earlier starts do not count any more
            {"state": "restarting", "reason": ValueError("x"), "starts": 0, "delay": 1.0},
            "restarting  ValueError: x; again in 1s",
        ),
        (
            {"state": "failed", "reason": ValueError("x"), "starts": 1},
            "failed      ValueError: x; gave up after 1 start",
        ),
        ({"state": "failed", "reason": ValueError("x")}, "failed      ValueError: x"),
        ({"state": "exited"}, "exited"),
    ],
)
def test_each_state_is_told_in_a_line(facts: dict[str, object], told: str) -> None:
    page = io.StringIO()
    log = UpLog(Console(file=page, width=200), SystemClock(), json=False, width=5)

    log.entry(ENTRY_EVENT, {}, {"id": "app:a", **facts}, None)

    assert page.getvalue().rstrip("\n")[len("12:00:00  ") :] == f"app:a  {told}"
