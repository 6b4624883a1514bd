"""An agent of the OpenAI Agents SDK is killed at every durable point, streamed or not."""

from pathlib import Path

import pytest

pytest.importorskip("agents")

from tests.support.agent_kills import Ended, check, everywhere

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]


def test_only_calls_in_flight_are_repeated_and_transcript_and_session_are_the_same(
    url: str, tmp_path: Path
) -> None:
    plain, killed = everywhere("tests.integrations.openai_agents.program", url, tmp_path)
    _check(plain, killed)


def test_a_streamed_run_is_the_same(tmp_path: Path) -> None:
    url, module = f"sqlite:///{tmp_path / 'jobs.db'}", "streamed_program"
    before = ("before_write",)
    _check(*everywhere(f"tests.integrations.openai_agents.{module}", url, tmp_path, before))


def _check(plain: Ended, killed: list[Ended]) -> None:
    transcript, last, session = plain.result
    answers = [each["output"] for each in transcript if "output" in each]
    assert answers[-2:] == ["sent to kim", "paid 90"]
    assert (last, len(session)) == ("kim", len(transcript))
    check(plain, killed, at_once=4, once=("effect ",))
