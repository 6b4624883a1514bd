"""A request that came from another loop: its answer goes back over the wire."""

from typing import Any

from perdure.base.errors import NotPortable
from perdure.process.hosts import signals
from perdure.process.hosts.stand_in import Wire
from perdure.process.request import Request


class FarRequest(Request[Any], kw_only=True, eq=False):
    """What stands here for a request whose caller waits elsewhere."""

    wire: Wire
    number: int

    def _close(self, calls: dict[Request[Any], None]) -> None:
        """Send the answer; if there is none, the caller learns of the server's death by itself."""
        calls.pop(self, None)
        wire, number = self.wire, self.number
        if wire.asked.pop(number, None) is None or self._error is not None:
            return  # the caller has given up, or the server is dead
        try:
            wire.post(signals.Answer(number, self._value))
        except NotPortable as error:
            wire.post(signals.NoAnswer(number, error))
