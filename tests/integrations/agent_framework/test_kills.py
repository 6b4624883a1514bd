"""An agent of the Agent Framework is killed at every durable point: only calls in flight repeat."""

from pathlib import Path

import pytest

pytest.importorskip("agent_framework")

from tests.support.agent_kills import check, everywhere

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]


def test_only_calls_in_flight_are_repeated_and_the_transcript_is_the_same(
    url: str, tmp_path: Path
) -> None:
    before = ("before_write",)  # after a write it is where it is before the next one
    plain, killed = everywhere("tests.integrations.agent_framework.program", url, tmp_path, before)
    assert plain.result[-3:] == ["sent to kim", "paid 90", "all is done"]
    check(plain, killed, at_once=4, once=("effect ",))
