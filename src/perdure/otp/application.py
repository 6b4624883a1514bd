"""Application: a program with a root supervisor, started as a unit and stopped in order."""

from typing import Self

from perdure.base.errors import ProcError, Shutdown, StartError
from perdure.base.pid import Pid
from perdure.otp.address import HasPid
from perdure.process.api import wait_exit
from perdure.process.process import Process, current
from perdure.process.relations import unlink
from perdure.process.runtime import run


class Application:
    """The base class of an application: override `start` to say what runs.

    class App(Application):
        async def start(self) -> Supervisor:
            return await Supervisor.start_link([...], name="App.Root")

    `async with App() as app: await app.wait()` runs it inside a process; `App().run()` is a whole
    program, which SIGINT and SIGTERM stop in order.
    """

    _root: Process | None = None

    # What a subclass overrides

    async def start(self) -> HasPid | Pid:
        """Start the root supervisor, linked to this process, and return it."""
        raise NotImplementedError(f"{type(self).__name__} needs `async def start`")

    async def prep_stop(self) -> None:
        """Prepare the stop while everything still runs, such as by refusing new work."""

    async def stop(self) -> None:
        """Clean up after everything has stopped."""

    # Running it

    async def wait(self) -> BaseException | None:
        """Wait until the root supervisor ends by itself; return the reason, None if normal."""
        if self._root is None:
            raise ProcError(f"{type(self).__name__} does not run: enter it with `async with`")
        await wait_exit(self._root)
        assert self._root.outcome is not None
        return self._root.outcome.error

    def run(self) -> None:
        """Run it as a program until its root supervisor ends, or a signal stops it.

        Raises:
            BaseException: The exit reason of the root supervisor, unless it is normal.
            KeyboardInterrupt: SIGINT stopped it.
            SystemExit: SIGTERM stopped it.
        """
        run(self._serve)

    async def _serve(self) -> None:
        async with self:
            reason = await self.wait()
        if reason is not None:
            raise reason

    async def __aenter__(self) -> Self:
        if self._root is not None:
            raise ProcError(f"{type(self).__name__} runs already")
        given = await self.start()
        root = given if isinstance(given, Pid) else given.pid
        if root.target is None:
            raise StartError(type(self), ProcError("its root supervisor has ended already"))
        self._root = root.target
        # `wait` reports the end of the root, so it must not end this process too.
        # The root still stops when this process ends, since it monitors its parent.
        unlink(current("Application"), root, flush=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        root, self._root = self._root, None
        assert root is not None
        try:
            if not root.done():
                await self._stop_root(root)
        finally:
            await self.stop()

    async def _stop_root(self, root: Process) -> None:
        try:
            await self.prep_stop()
        finally:
            root.exit_signal(current("Application").pid, Shutdown())
            await wait_exit(root)
