"""Tables of options name exactly what the code takes."""

import dataclasses
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from perdure import Retry, Settings
from perdure.otp import DynamicSupervisor, async_stream
from perdure.otp.pool import PoolOptions

DOCS = Path(__file__).parent.parent.parent / "docs"


def listed(name: str, head: str) -> set[str]:
    """Return the names in the first column of the table that begins with this line."""
    lines = (DOCS / name).read_text("utf-8").split(head, 1)[1].splitlines()[2:]
    rows = lines[: next(i for i, line in enumerate([*lines, ""]) if not line.startswith("|"))]
    cells = [row.split("|")[1] for row in rows]
    return {word for cell in cells for word in cell.split("`")[1::2]}


def fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def keywords(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("page", "head", "names"),
    [
        ("toolbox.md", "| field of `Retry` | default | meaning |", fields(Retry)),
        ("processes/runtime.md", "| setting | default | meaning |", fields(Settings)),
        ("otp/stream.md", "| option | default | meaning |", keywords(async_stream)),
        ("otp/pool.md", "| option | default | meaning |", {"name", *PoolOptions.__annotations__}),
        (
            "otp/dynamic_supervisor.md",
            "| option | means | default |",
            keywords(DynamicSupervisor) - {"strategy"},
        ),
    ],
)
def test_a_table_of_options_names_those_of_the_code(
    page: str, head: str, names: Iterable[str]
) -> None:
    assert listed(page, head) == set(names)
