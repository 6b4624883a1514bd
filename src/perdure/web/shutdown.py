"""Whether the server is about to stop: open streams must end, or it waits for them for ever.

uvicorn tells an application nothing until every connection has ended. It says so of itself, in
`should_exit`; the handler of SIGTERM is a method of it while it runs. With another server, or where
there is no handler of signals, `ServerShutdown.begin` is called by hand.
"""

import signal


class ServerShutdown:
    """Whether the server stops."""

    def __init__(self) -> None:
        self._begun = False

    def begin(self) -> None:
        """End all open streams, within half a second."""
        self._begun = True

    @property
    def begun(self) -> bool:
        """Whether the server is about to stop."""
        if not self._begun:
            server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            self._begun = getattr(server, "should_exit", False) is True
        return self._begun
