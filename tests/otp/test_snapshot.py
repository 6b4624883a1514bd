"""Snapshots: what an agent knew is there again after a restart, whatever happened to the file."""

# ruff: noqa: ASYNC240 - the tests look at small files themselves

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import process
from perdure.base.errors import SnapshotError
from perdure.errors import CallExit, StartError
from perdure.otp.agent import Agent
from perdure.otp.snapshot import Snapshot, encode_state, load, save, seal, state_in, unseal
from perdure.process import sleep
from perdure.testing import simulated
from tests.support.otp_servers import start_any
from tests.support.processes import others_rest


@dataclass
class Order:
    item: str
    count: int


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.json"


def content(state: Any, version: int = 1) -> bytes:
    return seal(encode_state(state), version, 0.0)


def saved_state(path: Path) -> Any:
    return json.loads(path.read_bytes())["state"]


# An agent with a snapshot


@simulated
async def test_a_state_is_saved_at_a_stop_and_loaded_at_the_next_start(path: Path) -> None:
    agent = await start_any(dict, snapshot=Snapshot(path))
    await agent.update(lambda state: {**state, "a": 1})
    await agent.stop()
    again = await start_any(dict, snapshot=Snapshot(path))
    assert await again.get(lambda state: state) == {"a": 1}


@simulated
async def test_the_first_function_is_not_called_when_there_is_a_snapshot(path: Path) -> None:
    def never() -> Any:
        raise AssertionError("called")

    save(Snapshot(path), content({"a": 1}))
    agent = await start_any(never, snapshot=Snapshot(path))
    assert await agent.get(lambda state: state["a"]) == 1


@simulated
async def test_a_changed_state_is_saved_now_and_then(path: Path) -> None:
    agent = await start_any(lambda: 1, snapshot=Snapshot(path, every="10s"))
    await agent.update(lambda state: state + 1)
    assert not path.exists()
    await sleep(10)
    assert await agent.get(lambda state: state, timeout=None) == 2  # after the save
    assert saved_state(path) == 2
    await agent.update(lambda state: state + 1)
    await sleep(10)
    await agent.get(lambda state: state, timeout=None)
    assert saved_state(path) == 3


@simulated
async def test_a_killed_agent_comes_back_with_what_was_saved_last(path: Path) -> None:
    snapshot = Snapshot[Any](path, every="10s")
    agent = await start_any(lambda: 1, snapshot=snapshot)
    await sleep(10)
    await agent.update(lambda state: 99, timeout=None)
    process.kill(agent.pid)
    await others_rest()
    again = await start_any(lambda: 0, snapshot=snapshot)
    assert await again.get(lambda state: state) == 1


@simulated
async def test_an_unchanged_state_is_not_written_again(path: Path) -> None:
    agent = await start_any(lambda: 1, snapshot=Snapshot(path, every="10s"))
    await sleep(10)
    await agent.get(lambda state: state, timeout=None)
    path.unlink()
    await sleep(30)
    await agent.stop()
    assert not path.exists()


@simulated
async def test_without_a_period_it_is_saved_only_at_a_stop(path: Path) -> None:
    agent = await start_any(lambda: 1, snapshot=Snapshot(path, every=None))
    await sleep("1h")
    assert not path.exists()
    await agent.stop()
    assert saved_state(path) == 1


@simulated
async def test_a_crash_and_a_kill_save_nothing(path: Path) -> None:
    for end in ("crash", "kill"):
        agent = await start_any(lambda: 1, snapshot=Snapshot(path))
        if end == "kill":
            process.kill(agent.pid)
        else:
            agent.cast(lambda state: state // 0)
        await others_rest()
        assert not process.alive(agent.pid)
    assert not path.exists()


@simulated
async def test_the_snapshot_is_written_before_on_stop_runs(path: Path) -> None:
    seen: list[bool] = []

    def look(_: int) -> None:
        seen.append(path.exists())

    agent = await start_any(lambda: 1, snapshot=Snapshot(path), on_stop=look)
    await agent.stop()
    assert seen == [True]


@simulated
async def test_typed_states_come_back_as_what_they_were(path: Path) -> None:
    snapshot = Snapshot(path, kind=dict[int, Order])
    agent = await Agent.start(lambda: {7: Order("tea", 2)}, snapshot=snapshot)
    await agent.stop()
    again = await Agent.start(dict[int, Order], snapshot=snapshot)
    assert await again.get(lambda state: state) == {7: Order("tea", 2)}


# Failures


@simulated
async def test_a_state_that_json_cannot_say_is_refused_at_the_start(path: Path) -> None:
    with pytest.raises(StartError, match="JSON"):
        await start_any(object, snapshot=Snapshot(path))


@simulated
async def test_a_save_that_fails_is_logged_and_the_agent_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = path.parent / "missing" / "agent.json"
    agent = await start_any(lambda: 1, snapshot=Snapshot(missing, every="10s"))
    await sleep(10)
    assert await agent.get(lambda state: state, timeout=None) == 1
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert str(missing) in record.getMessage()
    missing.parent.mkdir()
    await sleep(10)
    await agent.get(lambda state: state, timeout=None)
    assert saved_state(missing) == 1


@simulated
async def test_a_save_that_fails_at_a_stop_is_told_to_who_stops(path: Path) -> None:
    agent = await start_any(lambda: 1, snapshot=Snapshot(path.parent / "missing" / "a.json"))
    with pytest.raises(CallExit) as caught:
        await agent.stop()
    assert isinstance(caught.value.reason, SnapshotError)


@simulated
async def test_a_damaged_snapshot_is_logged_and_the_previous_one_used(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = Snapshot[Any](path)
    save(snapshot, content("old"))
    save(snapshot, content("new"))
    path.write_bytes(path.read_bytes().replace(b"new", b"bad"))
    agent = await start_any(lambda: "first", snapshot=snapshot)
    assert await agent.get(lambda state: state) == "old"
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "checksum" in record.getMessage()
    assert str(path) in record.getMessage()
    await agent.update(lambda state: "newer")
    await agent.stop()
    assert (saved_state(path), saved_state(snapshot.previous)) == ("newer", "old")
    assert b"bad" in snapshot.damaged.read_bytes()


@simulated
async def test_without_any_whole_snapshot_the_start_fails_and_no_file_is_touched(
    path: Path,
) -> None:
    path.write_bytes(b"{")
    with pytest.raises(StartError, match="no snapshot is complete") as caught:
        await start_any(dict, snapshot=Snapshot(path))
    assert isinstance(caught.value.reason, SnapshotError)
    assert path.read_bytes() == b"{"


# Files


def test_two_generations_are_kept(path: Path) -> None:
    snapshot = Snapshot[Any](path)
    for state in ("first", "second", "third"):
        save(snapshot, content(state))
    assert (saved_state(path), saved_state(snapshot.previous)) == ("third", "second")
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "agent.json",
        "agent.json.previous",
    ]


def test_a_crash_between_the_renames_loses_nothing(path: Path) -> None:
    snapshot = Snapshot[Any](path)
    save(snapshot, content("old"))
    path.replace(snapshot.previous)  # and then the power went out
    loaded = load(snapshot)
    assert loaded is not None
    assert loaded.state == "old"


def test_nothing_saved_is_nothing_found(path: Path) -> None:
    assert load(Snapshot(path)) is None


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        raise OSError("no space left")

    snapshot = Snapshot[Any](path)
    save(snapshot, content("old"))
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SnapshotError, match="no space left"):
        save(snapshot, content("new"))
    assert saved_state(path) == "old"
    assert [file.name for file in path.parent.iterdir()] == ["agent.json"]


def test_every_cut_and_every_changed_byte_is_noticed(path: Path) -> None:
    whole = content({"a": [1, 2, 3]})
    for end in range(len(whole)):
        with pytest.raises(SnapshotError):
            unseal(whole[:end])
    state = whole.index(b'{"a"')
    for place in range(state, len(whole) - 1):
        changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with pytest.raises(SnapshotError):
            unseal(changed)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_what_was_sealed_comes_out_again(state: Any) -> None:
    assert state_in(unseal(content(state)), Snapshot("agent.json")) == state


# Versions


def test_an_older_version_is_upgraded(path: Path) -> None:
    save(Snapshot(path), content({"tea": 2}))

    def upgrade(version: int, state: Any) -> Any:
        assert version == 1
        return [{"item": item, "count": count} for item, count in state.items()]

    loaded = load(Snapshot(path, kind=list[Order], version=2, upgrade=upgrade))
    assert loaded is not None
    assert loaded.state == [Order("tea", 2)]


def test_another_version_without_an_upgrade_is_refused_and_left_alone(path: Path) -> None:
    save(Snapshot(path), content("old"))
    save(Snapshot(path), content("new"))
    with pytest.raises(SnapshotError, match="upgrade"):
        load(Snapshot(path, version=2))
    assert saved_state(path) == "new"


def test_another_shape_is_refused_and_left_alone(path: Path) -> None:
    save(Snapshot(path), content("text"))
    with pytest.raises(SnapshotError, match="raise `version`"):
        load(Snapshot(path, kind=dict[str, int]))
    assert saved_state(path) == "text"


def test_a_file_that_is_no_snapshot_is_refused(path: Path) -> None:
    path.write_text('{"a": 1}')
    with pytest.raises(SnapshotError, match="not a complete snapshot"):
        load(Snapshot(path))


@pytest.mark.parametrize("every", [0, -1, "often"])
def test_a_bad_period_is_refused(path: Path, every: Any) -> None:
    with pytest.raises(ValueError, match="every"):
        Snapshot(path, every=every)
