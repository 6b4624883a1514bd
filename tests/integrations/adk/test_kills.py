"""An agent of the ADK is killed at every durable point: only calls in flight are repeated."""

from pathlib import Path

import pytest

pytest.importorskip("google.adk")

from tests.support.agent_kills import check, everywhere

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]


def test_only_calls_in_flight_are_repeated_and_transcript_and_session_are_the_same(
    url: str, tmp_path: Path
) -> None:
    before = ("before_write",)  # after a write it is where it is before the next one
    plain, killed = everywhere("tests.integrations.adk.program", url, tmp_path, before)
    told, stored = plain.result
    assert (told[-2][2], told[-1][1]) == (["{'result': 'paid 90'}"], ["all is done"])
    assert stored[1:] == told
    check(plain, killed, at_once=4, once=("effect ",))
