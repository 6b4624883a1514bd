"""Whether the server is about to stop: open streams must end, or it waits for them for ever.

uvicorn notifies an application only when every connection has ended. Its own `should_exit` says it
earlier, and while it runs the handler of SIGTERM is one of its methods. With another server, or
without a handler of signals, call `ServerShutdown.begin`.
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
