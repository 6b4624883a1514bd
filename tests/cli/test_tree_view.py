"""The picture of a tree: bounded, and drawn for people."""

from perdure import process
from perdure.cli.tree import snapshot
from perdure.cli.tree_lines import describe_entry, lines
from perdure.entries import load_entries
from perdure.otp import tree
from perdure.otp import tree_picture as picture
from perdure.process import sleep
from perdure.testing import simulated


async def rest() -> None:
    await sleep("1h")


async def chain(length: int) -> None:
    if length:
        process.spawn_linked(chain, length - 1)
    await sleep("1h")


@simulated
async def test_a_long_chain_is_cut_and_what_is_left_out_is_counted() -> None:
    process.spawn(chain, 5_000)
    await sleep("1s")

    drawn = snapshot("here", load_entries(), tree())

    depth, node = 0, drawn["roots"][0]
    while node["children"]:
        depth, node = depth + 1, node["children"][0]
    assert depth == picture.DEEPEST
    assert node["left_out"] == 1
    assert list(lines(drawn))[-1].strip() == "└─ … 1 more"


@simulated
async def test_of_many_processes_the_first_are_drawn_and_the_others_counted() -> None:
    for _ in range(picture.MOST_NODES + 10):
        process.spawn(rest)

    drawn = snapshot("here", load_entries(), tree())

    [root] = drawn["roots"]
    assert len(root["children"]) == picture.MOST_NODES - 1
    assert root["left_out"] == 11
    assert len(list(lines(drawn))) == picture.MOST_NODES + 2


async def fail() -> None:
    raise ValueError("no luck")


@simulated
async def test_hosts_are_told_with_what_they_are_made_of_and_services_with_their_last_error() -> (
    None
):
    service = {"kind": "process.py", "lifecycle": {"auto_start": True}}
    entries = load_entries(
        {
            "version": "1.0",
            "namespace": "app",
            "entries": [
                {"name": "here", "kind": "process.host", "host": {"kind": "inline"}},
                {"name": "cpu", "kind": "process.host", "host": {"kind": "os", "workers": 2}}
                | {"lifecycle": {"auto_start": False}},
                {"name": "s", "source": fail, "host": "here"} | service,
            ],
        }
    )
    async with entries:
        await sleep("100ms")
        drawn = snapshot("here", entries, tree())

    facts = {entry["id"]: ", ".join(describe_entry(entry)) for entry in drawn["entries"]}
    assert facts == {
        "app:here": "host running, inline",
        "app:cpu": "host stopped, 2 OS processes",
        "app:s": "service restarting, last error: ValueError: no luck",
    }
