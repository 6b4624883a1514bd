import dataclasses
import pickle
from typing import Any

import pytest

from perdure.base.settings import Overflow, Settings


def test_the_defaults_are_in_seconds() -> None:
    assert dataclasses.asdict(Settings()) == {
        "stop_timeout": 5.0,
        "kill_every": 0.02,
        "abandon_after": 5.0,
        "turn_steps": 1024,
        "turn_time": 0.005,
        "busy_wait": 0.0001,
        "mailbox_limit": None,
        "overflow": Overflow.REJECT,
        "report_crashes": True,
        "long_task": 300.0,
    }


def test_a_bound_can_be_given_as_text_or_number() -> None:
    settings = Settings(stop_timeout="1m", turn_time=0.01, overflow="drop_oldest", mailbox_limit=10)
    assert settings.stop_timeout == 60.0
    assert settings.turn_time == 0.01
    assert settings.overflow is Overflow.DROP_OLDEST
    assert settings.mailbox_limit == 10


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("stop_timeout", -1, "stop_timeout: bad duration -1: negative"),
        ("kill_every", 0, "kill_every must be longer than 0"),
        ("abandon_after", "5", "abandon_after: bad duration '5': a unit is missing"),
        ("turn_time", "0s", "turn_time must be longer than 0"),
        ("turn_steps", 0, "turn_steps must be 1 or more, not 0"),
        ("mailbox_limit", 0, "mailbox_limit must be 1 or more, not 0"),
        ("overflow", "wait", "overflow must be one of reject, drop_newest, drop_oldest, exit"),
        ("overflow", None, "overflow must be one of"),
    ],
)
def test_a_bound_out_of_range_is_refused_by_name(setting: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**{setting: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("stop_timeout", None),
        ("kill_every", True),
        ("turn_steps", 1.5),
        ("turn_steps", True),
        ("mailbox_limit", "10"),
        ("report_crashes", "no"),
        ("report_crashes", 1),
    ],
)
def test_a_bound_of_the_wrong_type_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{setting}"):
        Settings(**{setting: value})


def test_settings_cannot_be_changed_but_copied_with_a_change() -> None:
    settings = Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.turn_steps = 5  # pyright: ignore[reportAttributeAccessIssue]
    assert dataclasses.replace(settings, stop_timeout="1s") == Settings(stop_timeout=1)


def test_settings_can_travel_to_another_os_process() -> None:
    settings = Settings(overflow="exit")
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Settings.from_env({"PATH": "/bin", "OTHER_STOP_TIMEOUT": "x"}) == Settings()


def test_the_variables_of_the_command_line_are_no_settings() -> None:
    assert Settings.from_env({"PERDURE_URL": "sqlite:///a.db", "PERDURE_APP": "a:b"}) == Settings()


def test_every_setting_can_be_read_from_the_environment() -> None:
    environ = {
        "PERDURE_STOP_TIMEOUT": "10s",
        "PERDURE_KILL_EVERY": "50ms",
        "PERDURE_ABANDON_AFTER": "1m",
        "PERDURE_TURN_STEPS": "64",
        "PERDURE_TURN_TIME": "1ms",
        "PERDURE_BUSY_WAIT": "0s",
        "PERDURE_MAILBOX_LIMIT": "1000",
        "PERDURE_OVERFLOW": "drop_newest",
        "PERDURE_REPORT_CRASHES": "off",
        "PERDURE_LONG_TASK": "none",
    }
    assert Settings.from_env(environ) == Settings(
        stop_timeout=10,
        kill_every=0.05,
        abandon_after=60,
        turn_steps=64,
        turn_time=0.001,
        busy_wait=0,
        mailbox_limit=1000,
        overflow=Overflow.DROP_NEWEST,
        report_crashes=False,
        long_task=None,
    )
    assert {f"PERDURE_{field.name.upper()}" for field in dataclasses.fields(Settings)} == {*environ}


@pytest.mark.parametrize("text", ["1", "true", "YES", "On"])
def test_a_flag_is_read_in_the_usual_spellings(text: str) -> None:
    assert Settings.from_env({"PERDURE_REPORT_CRASHES": text}).report_crashes


def test_no_limit_is_spelled_none() -> None:
    assert Settings.from_env({"PERDURE_MAILBOX_LIMIT": "none"}).mailbox_limit is None


def test_all_mistakes_of_the_environment_are_listed_at_once() -> None:
    environ = {
        "PERDURE_STOP_TIMEOUT": "10",
        "PERDURE_TURN_STEPS": "many",
        "PERDURE_MAILBOX_LIMIT": "0",
        "PERDURE_OVERFLOW": "wait",
        "PERDURE_REPORT_CRASHES": "perhaps",
        "PERDURE_STOPTIMEOUT": "1s",
        "PERDURE_KILL_EVERY": "1s",
    }
    with pytest.raises(ValueError, match="invalid settings in the environment") as caught:
        Settings.from_env(environ)
    first, *lines = str(caught.value).splitlines()
    assert first == "invalid settings in the environment:"
    assert [line.split(":")[0].strip() for line in lines] == sorted(
        {*environ} - {"PERDURE_KILL_EVERY"}
    )
    assert "PERDURE_STOPTIMEOUT: unknown; the settings are PERDURE_ABANDON_AFTER," in str(
        caught.value
    )
    assert "PERDURE_TURN_STEPS: 'many' is not a whole number" in str(caught.value)
    assert "PERDURE_REPORT_CRASHES: 'perhaps' is not a boolean" in str(caught.value)
