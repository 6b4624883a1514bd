"""`perdure init`: writes a starter project, which runs at once and is tested."""

from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.cli.output import Code, Format, FormatOption, give_list, refuse, say

APP: Final = '''"""A durable job: charge every customer once, even if the worker is killed."""

from perdure import App, StepContext

app = App("sqlite:///jobs.db")


@app.step
async def customers(month: str) -> list[str]:
    """Return who is to be charged."""
    return [f"{name} in {month}" for name in ("Ann", "Kim", "Lea")]


@app.step
async def charge(ctx: StepContext, customer: str) -> str:
    """Charge one customer; the ledger of the job knows what was sent, whatever happens."""

    async def call(key: str) -> str:
        # Here: the call of your payment provider, with this idempotency key.
        return f"charged {customer} ({key[:8]})"

    return await ctx.effect("payment", call, target=customer, in_doubt="replay")


@app.job
async def monthly_billing(month: str) -> int:
    """Charge all customers; a worker that dies is replaced, and nobody is charged twice."""
    charged = [await charge(customer) for customer in await customers(month)]
    return len(charged)
'''

TEST: Final = '''"""The job on a real store of the test's own."""

import asyncio

from app import app, monthly_billing
from perdure.testing import environment


def test_everybody_is_charged_once() -> None:
    async def check() -> None:
        async with environment(app):
            handle = await app.submit(monthly_billing("June"))
            assert await handle.result() == 3
            assert [effect.target for effect in await handle.effects()] == [
                "Ann in June",
                "Kim in June",
                "Lea in June",
            ]

    asyncio.run(check())
'''

TOML: Final = """# Settings of the command line; flags and the environment count before them.
app = "app:app"
url = "sqlite:///jobs.db"
"""

README: Final = """# {name}

A durable job, written with Perdure.

```sh
perdure dev          # a worker and the dashboard; it prints a link, and reloads when a file changes
perdure submit monthly_billing -a '{{"month": "June"}}' --wait
perdure jobs list
pip install pytest   # once, for the tests
python -m pytest     # the tests, on a store of their own
```

Kill the worker with `kill -9` while a job runs, and start it again: the job continues.
"""

IGNORED: Final = """__pycache__/
.venv/
jobs.db*
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    folder: Annotated[
        Path, typer.Argument(help="The folder to write it to; it is created.")
    ] = Path(),
    *,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write a starter project: a job, its test, settings and a README. Overwrites nothing."""
    name = folder.resolve().name
    files = {
        "app.py": APP,
        "tests/test_app.py": TEST,
        "conftest.py": '"""Makes the modules of this folder importable for the tests."""\n',
        "perdure.toml": TOML,
        "README.md": README.format(name=name),
        ".gitignore": IGNORED,
    }
    there = [each for each in files if (folder / each).exists()]
    if there:
        refuse(f"{folder} already has {', '.join(there)}: nothing was written", Code.CONFLICT)
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    if give_list([{"path": str(folder / path)} for path in files], output, "path"):
        return
    say(f"A project is in {folder.resolve()}: {', '.join(files)}.")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    say(f"Run it: {enter}perdure dev")
