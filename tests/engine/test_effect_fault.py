"""Workers that die in the middle of effects and of undos: the receiver tells what happened."""

import pytest

import perdure
from tests.programmes.effect_kill import campaign


@pytest.mark.timeout(240)
def test_no_death_of_a_worker_does_a_deed_twice_or_loses_one_in_silence(url: str) -> None:
    tally = perdure.run(campaign, url, 15, 7)
    assert tally.wrong == []
    assert (tally.runs, tally.deaths) == (15, 15)
