"""`perdure demo`: runs the scenarios one after the other in one store, and counts the outcome."""

import asyncio
import contextlib
import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from perdure.app import App
from perdure.base.clock import SystemClock
from perdure.cli.demo.app import build, url
from perdure.cli.demo.display import Bars, Lines
from perdure.cli.demo.harness import LOOK_EVERY, Demo, DemoWorker, Outcome, serving
from perdure.cli.demo.migration import MigrationScenario
from perdure.cli.demo.scenarios import MailingScenario, OrderScenario, PayoutScenario
from perdure.cli.demo.showcase import leave_running, show_agent, show_tree
from perdure.cli.local_page import new_link, serve_locally
from perdure.cli.output import Code, as_json, code_of, refuse, settle, settled
from perdure.process.runtime import run
from perdure.process.timer import sleep

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
    once: Annotated[
        bool,
        typer.Option("--once", help="Run the scenarios and exit, without serving the dashboard."),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the totals as JSON on the last line; no page.")
    ] = False,
    pace: Annotated[
        float,
        typer.Option(
            min=0.01, max=10, help="Factor for the duration of the work; 0.5 is twice as fast."
        ),
    ] = 1.0,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of the dashboard; 0 takes any free one.")
    ] = 0,
) -> None:
    """Kill workers at the worst moments, and show that nothing is lost and nothing done twice.

    A migration, a mailing, an order that is undone, and an approval; then, with a page that stays
    up until Ctrl-C, an agent with a budget and a supervision tree.
    The exit code is 0 only if nothing was lost or duplicated.
    """
    logging.getLogger("perdure").setLevel(logging.ERROR)  # the demo shows it better
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="perdure-demo-", ignore_cleanup_errors=True) as name:
        story = Story(console, Path(name), pace, port)
        if once or json:
            story.tell()
        else:
            story.tell_with_page()
    if story.counted is None:
        raise typer.Exit(Code.INTERRUPTED)
    if json:
        typer.echo(as_json(story.counted))
    raise typer.Exit(Code.OK if is_good(story.counted) else Code.FAILED)


class Story:
    """Tells the demo on a terminal, with or without its page.

    Attributes:
        counted: The totals, once the scenarios are over.
    """

    def __init__(self, console: Console, folder: Path, pace: float, port: int) -> None:
        """Prepare it.

        Args:
            console: Where to tell it.
            folder: Holds all files.
            pace: Factor for the duration of the work.
            port: The port of the dashboard.
        """
        seen = console.is_terminal
        display = (Bars if seen else Lines)(console, SystemClock())
        self.counted: dict[str, Any] | None = None
        self._console = console
        self._port = port
        self._demo = Demo(folder, display, INTERVAL if seen else 0.0, pace)

    def tell(self) -> None:
        """Run the scenarios."""
        self._conclude(settle(lambda: run(settled, run_scenarios, (self._demo,))))

    def tell_with_page(self) -> None:
        """Run the scenarios and what the dashboard shows, until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            _, error = run(settled, self._present, ())
            if error is not None:
                refuse(str(error), code_of(error))
        self._console.print("\n[dim]The demo has ended, and its files are deleted.[/dim]")

    async def _present(self) -> None:
        demo = self._demo
        async with (
            serving(demo.service) as port,
            build(demo.folder, port) as app,
            asyncio.TaskGroup() as group,
        ):
            listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            page = group.create_task(serve_locally(app, self._port, listening.set_result))
            await asyncio.wait([page, listening], return_when=asyncio.FIRST_COMPLETED)
            with demo.opened(app, port):
                base = listening.result()
                link = f"[cyan]{base}{await new_link(app)}[/cyan]"
                self._console.print(f"Watch it in a browser: {link}", soft_wrap=True)
                self._conclude(await play(demo, app))
                await self._stay(demo, base)
            page.cancel()

    def _conclude(self, result: DemoResult) -> None:
        self.counted = add_up(result)
        self._console.print()
        self._console.print(conclusion(self.counted), soft_wrap=True)

    async def _stay(self, demo: Demo, base: str) -> None:
        """Show what needs no kill, and keep a worker running until Ctrl-C."""
        with demo.resident() as worker:
            await leave_running(demo)
            await show_agent(demo, worker)
            await show_tree(demo, worker)
            self._invite(worker.pid, base + await new_link(demo.app))
            await until_dead(worker)
        while True:
            with demo.resident() as worker:
                self._console.print(f"That worker died. Worker {worker.pid} continues its jobs.")
                await until_dead(worker)

    def _invite(self, worker: int, link: str) -> None:
        say = partial(self._console.print, soft_wrap=True)
        say("\n[bold]Now it is your turn.[/bold]")
        say(f"  Page     [bold cyan]{link}[/bold cyan]  [dim](works once)[/dim]")
        say("           two questions wait in its inbox: approve one, and its job continues")
        say(f"  Kill     kill -9 {worker}    [dim]in another terminal: nothing is lost[/dim]")
        say(f"  Ask      perdure jobs list --url {url(self._demo.folder)}")
        say("\n[dim]Ctrl-C ends the demo and deletes its files.[/dim]")


async def until_dead(worker: DemoWorker) -> None:
    """Wait until somebody kills a worker."""
    while worker.is_alive:
        await sleep(LOOK_EVERY)


async def run_scenarios(demo: Demo) -> DemoResult:
    """Run all scenarios, and return how they went."""
    async with serving(demo.service) as port, build(demo.folder, port) as app:
        with demo.opened(app, port):
            return await play(demo, app)


async def play(demo: Demo, app: App) -> DemoResult:
    """Run all scenarios in an opened demo, and return how they went."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(LONGEST):
        outcomes = [await act(demo).run() for act in SCENARIOS]
    return DemoResult(
        outcomes=tuple(outcomes),
        jobs=await (await app.store()).counts(),
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
