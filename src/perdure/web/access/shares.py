"""A limited number of something, of which one client has at most a quarter."""

from typing import Final

from perdure.base.errors import RequestRefused
from perdure.web.access.principal import Principal

_PARTS: Final = 4  # one client can take so much of all that three others find as much
_AGAIN: Final = 1.0  # seconds: what is held here is held for a request at most


class Shares:
    """How much of a limited number each client holds."""

    def __init__(self, most: int, what: str, at_least: int = 1) -> None:
        """Hold nothing yet.

        Args:
            most: How much there is for all.
            what: What it is, in words.
            at_least: How much one client may hold, even if that is more than its part.
        """
        self._of_one = max(at_least, most // _PARTS)
        self._most = max(most, self._of_one)
        self._what = what
        self._held: dict[str, int] = {}
        self._total = 0

    def take(self, who: str, number: int = 1) -> None:
        """Hold more for a client.

        Raises:
            RequestRefused: It would hold too much, or all clients together would.
        """
        if not number:
            return
        held = self._held.get(who, 0) + number
        if held > self._of_one or self._total + number > self._most:
            text = f"too many {self._what} are under way: ask again when one is over"
            raise RequestRefused(429, "too_many_at_once", text, retry=_AGAIN)
        self._held[who] = held
        self._total += number

    def give_back(self, who: str, number: int = 1) -> None:
        """Hold less for a client."""
        left = self._held.pop(who, 0) - number
        self._total -= number
        if left > 0:
            self._held[who] = left


def share_of(principal: Principal) -> str:
    """Return whose share a principal uses: that of its tenant; without a tenant, its own."""
    tenant = principal.tenant
    return f"principal {principal.id}" if tenant is None else f"tenant {tenant}"
