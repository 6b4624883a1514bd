"""A program that is killed in the middle of calls of an MCP server, and at every write."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client

from perdure import App, JobContext, JobState
from perdure.integrations.mcp import DurableMCP
from perdure.testing import crash_everywhere
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


@pytest.mark.timeout(180)  # it runs once for each of its writes, twice
async def test_a_job_calls_the_same_with_the_same_keys_wherever_its_worker_dies(
    url: str, address: str, tmp_path: Path
) -> None:
    app = App("sqlite:///never_opened.db")
    tools = DurableMCP(Client(address), tools={"send": {"in_doubt": "replay"}})

    @app.job
    async def agent(ctx: JobContext) -> list[str]:
        said: list[str] = []
        await tools.list_tools()
        for tool, argument in (("search", "words"), ("label", "name"), ("send", "text")):
            result = await tools.call_tool(tool, {argument: "lamp"}, id=tool)
            said.append(getattr(result.content[0], "text", ""))
        return said

    def observed() -> Any:
        """Return how many different calls the server has seen: a repeated one has the same key."""
        return sorted({tool: len(keys) for tool, keys in by_tool().items()}.items())

    def by_tool() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for tool, _, key in calls(tmp_path):
            found.setdefault(tool, set()).add(key)
        return found

    report = await crash_everywhere(
        app,
        agent(),
        arrange=lambda _: (tmp_path / "calls.log").unlink(missing_ok=True),
        observe=observed,
        url=url,
    )
    assert report.state is JobState.COMPLETED
    assert observed() == [("label", 1), ("search", 1), ("send", 1)]
