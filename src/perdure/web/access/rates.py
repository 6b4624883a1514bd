"""How often somebody may ask: a bucket of tokens for each of them, in bounded memory."""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from perdure.base.clock import Clock
from perdure.base.errors import RequestRefused

_MOST: Final = 10_000  # buckets; then the one that was not used for longest is forgotten
_NETWORK: Final = 64  # bits of an IPv6 address that one customer has


class Rate(NamedTuple):
    """So many requests a second in the long run, and so many at once."""

    each_second: float
    burst: int


class Rates:
    """A bucket for each key."""

    def __init__(self, rate: Rate, clock: Clock, most: int = _MOST) -> None:
        self._rate = rate
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, what: str) -> None:
        """Count one request.

        Raises:
            RequestRefused: It is one too many; `retry` says when to ask again.
        """
        now, rate = self._clock.monotonic(), self._rate
        left, at = self._buckets.pop(key, (float(rate.burst), now))
        left = min(float(rate.burst), left + (now - at) * rate.each_second)
        refused = left < 1
        self._buckets[key] = (left if refused else left - 1, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if refused:
            wait = (1 - left) / rate.each_second
            text = f"too many requests of this {what}: ask again in {max(1, round(wait))} s"
            raise RequestRefused(429, "too_many_requests", text, retry=wait)


def address_key(address: str) -> str:
    """Return what counts as one address: of IPv6, its network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:_NETWORK]
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> _NETWORK << _NETWORK)}/{_NETWORK}"
