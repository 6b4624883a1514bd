"""Every example prints what its page says, in virtual time and as a program."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.testing import simulate

ROOT = Path(__file__).parent.parent.parent

# A pid is written <1>, <2> … in the order in which the pids are first printed.
PRINTED: dict[str, list[str]] = {
    "workers": ["Result: task done"],
    "monitor": ["Worker exited: <1>", "Result: task done"],
    "monitor_later": ["Worker terminated: <1>"],
    "unmonitor": ["No event after unmonitor; worker alive: False"],
    "link": ["Linked: <1> to <2>", "Result: LINK_DOWN_RECEIVED"],
    "spawn_linked": ["Child died: <1>"],
    "trap_off": [
        "trap_links: False",
        "Worker exited: linked process <1> died: RuntimeError: worker error",
    ],
    "trap_on": ["Child failed, handling gracefully", "Result: LINK_DOWN_RECEIVED"],
    "cancel": [
        "Message: work a",
        "Cleaning up",
        "Worker cancelled: <1>",
        "Result: cancelled gracefully",
    ],
    "star": [
        "Parent <1> exited: PARENT_STAR_FAILURE",
        *(f"Child <{n}> exited: parent_died" for n in range(2, 12)),
    ],
    "chain": [
        "Chain: <1> -> <2> -> <3> -> <4> -> <5> -> <6>",
        "<1> exited: CHAIN_ROOT_FAILURE",
        *(
            f"<{n + 1}> exited: linked process <{n}> died: RuntimeError: CHAIN_ROOT_FAILURE"
            for n in range(1, 6)
        ),
    ],
}


def lines_of(printed: str) -> list[str]:
    pids: dict[str, str] = {}

    def number(pid: re.Match[str]) -> str:
        return pids.setdefault(pid[0], f"<{len(pids) + 1}>")

    return re.sub(r"\{inline\|\d+\}", number, printed).splitlines()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_its_lines_in_any_order_of_running(
    name: str, seed: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(importlib.import_module(f"examples.{name}").main, seed=seed)

    assert lines_of(capsys.readouterr().out) == PRINTED[name]


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_as_a_program(name: str) -> None:
    command = [sys.executable, "-m", f"examples.{name}"]

    program = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )

    assert lines_of(program.stdout) == PRINTED[name]


def test_every_example_is_tried() -> None:
    modules = {path.stem for path in (ROOT / "examples").glob("*.py")}

    durable = {"long_migration", "bulk_files", "json_plan", "step_classes"}  # in test_durable.py
    assert modules - {"__init__"} == set(PRINTED) | durable


def test_star_tells_every_child_in_the_order_of_linking(
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulate(importlib.import_module("examples.star").main)

    children = [int(n) for n in re.findall(r"Child \{inline\|(\d+)\}", capsys.readouterr().out)]

    assert children == sorted(children)
    assert len(children) == 10
