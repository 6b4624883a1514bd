"""Who waits for an answer at the other end of a wire."""

from typing import Any

from perdure.base.errors import NotPortable
from perdure.process.hosts import signals
from perdure.process.hosts.stand_in import Wire
from perdure.process.request import Request
from perdure.process.waiter import Waiter


class FarCaller(Waiter):
    """Takes the place of a caller that waits on another loop: to wake it is to send the answer."""

    __slots__ = ("_asked", "_number", "_wire", "request")

    request: Request[Any]

    def __init__(
        self, wire: Wire, number: int, asked: dict[tuple[Wire, int], Request[Any]]
    ) -> None:
        self._wire = wire
        self._number = number
        self._asked = asked  # where the node keeps it until it is answered

    def wake(self) -> None:
        """Send the answer; if there is none, the caller learns of the server's death by itself."""
        if self._asked.pop((self._wire, self._number), None) is None:
            return  # it has given up
        given = self.request.reply_given()
        if given is None:
            return
        try:
            self._wire.post(signals.Answer(self._number, *given))
        except NotPortable as error:
            self._wire.post(signals.NoAnswer(self._number, error))
