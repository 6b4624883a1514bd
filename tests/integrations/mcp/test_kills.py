"""A program that is killed in the middle of calls of an MCP server, and at every write."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from tests.support.agent_kills import check, everywhere
from tests.support.cli import ROOT
from tests.support.mcp_server import calls, serving

pytestmark = pytest.mark.once


@pytest.fixture
def address(tmp_path: Path) -> Generator[str]:
    with serving(tmp_path) as found:
        yield found


def run(store: str, address: str, folder: Path, *killed_at: str) -> tuple[int, str]:
    words = [sys.executable, "-m", "tests.support.mcp_agent", store, address, str(folder)]
    done = subprocess.run(
        [*words, *killed_at], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.timeout(180)  # six programs
def test_a_kill_in_the_middle_of_a_call_repeats_what_only_reads_and_sends_nothing_twice(
    url: str, address: str, tmp_path: Path
) -> None:
    assert run(url, address, tmp_path, "search") == (-9, "")
    assert run(url, address, tmp_path, "label") == (-9, "")
    assert run(url, address, tmp_path, "send") == (-9, "")
    assert run(url, address, tmp_path) == (0, "NEEDS_ATTENTION")
    made = calls(tmp_path)
    assert [tool for tool, _, _ in made] == ["search", "search", "label", "label", "send"]
    search, again, label, relabel, _ = (key for _, _, key in made)
    assert search == again
    assert label == relabel


@pytest.mark.timeout(300)
def test_at_every_durable_point_only_calls_in_flight_are_repeated_and_nothing_is_sent_twice(
    url: str, tmp_path: Path
) -> None:
    plain, killed = everywhere("tests.integrations.mcp.program", url, tmp_path)
    listed, found, sent = plain.result
    assert listed == ["search", "label", "send"]
    assert found == ["found x", "found xxx", "labelled"]
    assert sent == "sent"
    check(plain, killed, at_once=3, once=("effect ",))
