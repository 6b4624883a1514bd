"""An agent of pydantic-ai is killed at every durable point: only calls in flight are repeated."""

from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")

from tests.support.agent_kills import check, everywhere

pytestmark = [pytest.mark.once, pytest.mark.timeout(600)]


def test_only_calls_in_flight_are_repeated_and_the_transcript_is_the_same(
    url: str, tmp_path: Path
) -> None:
    plain, killed = everywhere("tests.integrations.pydantic_ai.program", url, tmp_path)
    assert ["ToolReturnPart", "paid 90"] in plain.result
    check(plain, killed, at_once=5, once=("effect ",))
