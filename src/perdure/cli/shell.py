"""`perdure shell`: a Python prompt inside a process, where `await` works.

The prompt is in the main thread, which Ctrl-C reaches, and the processes are in another: there a
runtime runs whose root process evaluates one statement after the other. So what a statement spawns
lives on while the next one is typed, and a message that was sent to the shell can be received.
"""

import ast
import asyncio
import code
import importlib
import threading
import traceback
from concurrent.futures import Future
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Annotated, Any, Final

import typer

import perdure
from perdure.cli.target import UrlOption, load_app
from perdure.otp.tree import tree
from perdure.process.runtime import run

_BANNER: Final = (
    "perdure {version}: this prompt is a process. `await` works here; "
    "there are {names}. Ctrl-D ends it."
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shell")(shell)


def shell(
    app: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="An app, such as `billing.jobs:app`."),
    ] = None,
    *,
    url: UrlOption = None,
) -> None:
    """Open a Python prompt inside a process, with `process`, `otp`, `tree()` and the app.

    It runs no worker: `await app.submit(…)` leaves the work to those that run elsewhere.
    """
    names: dict[str, Any] = {
        "process": perdure.process,
        "otp": perdure.otp,
        "tree": tree,
        "asyncio": asyncio,
        "perdure": perdure,
    }
    if app is not None:
        names = {"app": load_app(app, url), **names}
    evaluator = Evaluator({"__name__": "__console__", "__doc__": None, **names})
    listed = ", ".join(f"`{name}`" for name in names)
    with evaluator:
        _complete_names(evaluator.names)
        console = Prompt(evaluator)
        with suppress(SystemExit):
            console.interact(_BANNER.format(version=perdure.__version__, names=listed), exitmsg="")


def _complete_names(names: dict[str, Any]) -> None:
    """Let the Tab key complete names, where the terminal can."""
    with suppress(ImportError):
        readline = importlib.import_module("readline")
        completer = importlib.import_module("rlcompleter").Completer(names)
        readline.set_completer(completer.complete)
        readline.parse_and_bind("tab: complete")


class Prompt(code.InteractiveConsole):
    """The prompt: reads statements and hands them to the process."""

    def __init__(self, evaluator: "Evaluator") -> None:
        super().__init__(evaluator.names)
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._evaluator = evaluator

    def runcode(self, code: CodeType) -> None:
        """Evaluate a statement, and show what it raises."""
        try:
            self._evaluator.evaluate(code)
        except SystemExit:
            raise
        except KeyboardInterrupt:
            self.write("\nKeyboardInterrupt\n")
        except BaseException as error:  # noqa: BLE001  of the user's statement
            self.write("".join(traceback.format_exception(_without_ours(error))))


def _without_ours(error: BaseException) -> BaseException:
    """Return an error whose traceback begins at the statement."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<console>":
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


class Evaluator:
    """A runtime in a thread, whose root process evaluates statements; opened by `with`."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self._thread = threading.Thread(target=self._run, name="perdure-shell")
        self._up: Future[None] = Future()

    def __enter__(self) -> None:
        self._thread.start()
        self._up.result()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._wanted.put_nowait, None)
        self._thread.join()

    def evaluate(self, code: CodeType) -> None:
        """Evaluate a statement in the process; raise what it raises.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; the statement is cancelled.
        """
        answer: Future[BaseException | None] = Future()
        try:  # Ctrl-C may come at any line from here on
            self._loop.call_soon_threadsafe(self._wanted.put_nowait, (code, answer))
            error = answer.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(self._cancel, answer)
            raise
        if error is not None:
            raise error

    # In the thread

    def _run(self) -> None:
        try:
            run(self._serve)
        except BaseException as error:
            if self._up.done():
                raise
            self._up.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wanted: asyncio.Queue[tuple[CodeType, Future[BaseException | None]] | None]
        self._wanted = asyncio.Queue()
        self._task: asyncio.Task[BaseException | None] | None = None
        self._up.set_result(None)
        while (wanted := await self._wanted.get()) is not None:
            code, answer = wanted
            if not answer.set_running_or_notify_cancel():
                continue  # Ctrl-C came first
            # A task of its own, so that Ctrl-C ends the statement and not the process.
            self._task = self._loop.create_task(_evaluate(code, self.names))
            await asyncio.wait([self._task])
            answer.set_result(None if self._task.cancelled() else self._task.result())
        app = self.names.get("app")
        if isinstance(app, perdure.App):
            await app.close()

    def _cancel(self, answer: Future[BaseException | None]) -> None:
        if not answer.cancel() and self._task is not None:  # it has begun
            self._task.cancel()


async def _evaluate(code: CodeType, names: dict[str, Any]) -> BaseException | None:
    """Run a statement; return what it raised, since a loop ends with some exceptions."""
    try:
        result = FunctionType(code, names)()
        if asyncio.iscoroutine(result):
            await result
    except BaseException as error:  # noqa: BLE001  it belongs to the prompt
        return error
    return None
