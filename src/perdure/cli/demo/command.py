"""`perdure demo`: runs the scenarios one after the other in one store, and counts the outcome."""

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from perdure.base.clock import SystemClock
from perdure.cli.demo.app import build, url
from perdure.cli.demo.display import Bars, Lines
from perdure.cli.demo.harness import Demo, Outcome, serving
from perdure.cli.demo.migration import MigrationScenario
from perdure.cli.demo.scenarios import MailingScenario, OrderScenario, PayoutScenario
from perdure.cli.output import Code, as_json, settle, settled
from perdure.process.runtime import run

INTERVAL: Final = 0.7  # seconds after a kill, so that people can see that the worker is dead
LONGEST: Final = 150.0  # seconds after which something is wrong
SCENARIOS: Final = (MigrationScenario, MailingScenario, OrderScenario, PayoutScenario)


class DemoResult(Struct, frozen=True, kw_only=True):
    """How the demo went."""

    outcomes: tuple[Outcome, ...]
    jobs: dict[str, int]  # by state
    kills: int
    effects: int
    requests_repeated: int
    seconds: float


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    *,
    once: Annotated[bool, typer.Option("--once", help="Do not wait for Enter at the end.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the totals as JSON on the last line.")
    ] = False,
    pace: Annotated[
        float,
        typer.Option(
            min=0.01, max=10, help="Factor for the duration of the work; 0.5 is twice as fast."
        ),
    ] = 1.0,
) -> None:
    """Kill workers at the worst moments, and show that nothing is lost and nothing done twice.

    Four scenarios: a migration, a mailing, an order that is undone, and an approval.
    The exit code is 0 only if nothing was lost or duplicated.
    """
    logging.getLogger("perdure").setLevel(logging.ERROR)  # the demo shows it better
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name:
        folder = Path(name)
        result = _run(console, folder, pace)
        counted = add_up(result)
        console.print()
        console.print(conclusion(counted), soft_wrap=True)
        if console.is_terminal and not once and not json:
            _suggest_commands(console, result, url(folder))
    if json:
        typer.echo(as_json(counted))
    raise typer.Exit(Code.OK if is_good(counted) else Code.FAILED)


def _run(console: Console, folder: Path, pace: float) -> DemoResult:
    seen = console.is_terminal
    display = (Bars if seen else Lines)(console, SystemClock())
    demo = Demo(folder, display, INTERVAL if seen else 0.0, pace)
    return settle(lambda: run(settled, run_scenarios, (demo,)))


def _suggest_commands(console: Console, result: DemoResult, store: str) -> None:
    order = result.outcomes[2].job[-8:]
    console.print("\nInspect the jobs from another terminal, for example the order and its undo:")
    for words in ("jobs list", f"jobs show {order}", f"effects list --job {order}"):
        console.print(f"  perdure {words} --url {store}", soft_wrap=True)
    console.input("\n[dim]Press Enter to end the demo and delete its files.[/dim]")


async def run_scenarios(demo: Demo) -> DemoResult:
    """Run all scenarios, and return how they went."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with serving(demo.service) as port, build(demo.folder, port) as app:
        with demo.opened(app, port):
            async with asyncio.timeout(LONGEST):
                outcomes = [await act(demo).run() for act in SCENARIOS]
        jobs = await (await app.store()).counts()
    return DemoResult(
        outcomes=tuple(outcomes),
        jobs=jobs,
        kills=demo.kills,
        effects=len(demo.service.done),
        requests_repeated=demo.service.repeated,
        seconds=loop.time() - began,
    )


def add_up(result: DemoResult) -> dict[str, Any]:
    """Return the totals of all scenarios."""
    outcomes = result.outcomes
    counted: dict[str, Any] = {
        "jobs": result.jobs,
        "steps": sum(each.steps for each in outcomes),
        "kills": result.kills,
        "effects": result.effects,
        "lost": sum(each.lost for each in outcomes),
        "duplicates": sum(each.duplicates for each in outcomes),
        "requests_repeated": result.requests_repeated,
        "seconds": round(result.seconds, 1),
    }
    for each in outcomes:
        counted |= each.more
    return counted


def is_good(counted: dict[str, Any]) -> bool:
    """Whether nothing was lost or duplicated."""
    return not counted["lost"] and not counted["duplicates"]


def conclusion(counted: dict[str, Any]) -> Text:
    """Return the totals in words."""
    if not is_good(counted):
        text = f"{counted['lost']} lost, {counted['duplicates']} duplicated: this must not happen."
        return Text(text, style="bold red")
    jobs = sum(counted["jobs"].values())
    return Text.assemble(
        ("Nothing lost, nothing duplicated", "bold green"),
        f": {jobs} jobs, {counted['steps']} steps, {counted['effects']} effects and "
        f"{counted['kills']} kills in {counted['seconds']:.0f} s.\n"
        f"{counted['requests_repeated']} requests were sent again after a kill, each with the key "
        "of the first attempt,\nso the receiving service recognised them and did nothing twice.",
    )
