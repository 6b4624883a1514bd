"""To which addresses of the network we speak when somebody else gave us the URL.

A name is checked when it is connected to, and it is the checked address that is connected to:
a name that is looked up twice can lead to two places.
"""

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias

import httpcore

Address: TypeAlias = IPv4Address | IPv6Address

_NAT64: Final = IPv6Network("64:ff9b::/96")  # the last 32 bits are an IPv4 address


class Forbidden(OSError):
    """The name leads to an address that we do not speak to."""


class Allowed:
    """Public addresses, and those networks that are named."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ip_network(network) for network in networks]

    def allows(self, address: Address) -> bool:
        """Tell whether an address may be spoken to, also if it hides in another one."""
        inner = _hidden(address)
        if any(_is_in(inner, network) for network in self._networks):
            return True
        return inner.is_global and not inner.is_multicast and not inner.is_reserved

    def check(self, host: str, addresses: Iterable[str]) -> list[str]:
        """Give the addresses of a host.

        Raises:
            Forbidden: One of them must not be spoken to: the name is not trusted at all then.
        """
        found = [address.split("%")[0] for address in addresses]
        bad = [address for address in found if not self.allows(ip_address(address))]
        if bad or not found:
            raise Forbidden(f"{host} leads to {', '.join(bad) or 'nowhere'}, which is not public")
        return found


def _is_in(address: Address, network: Any) -> bool:
    return address.version == network.version and address in network


def _hidden(address: Address) -> Address:
    """Give the IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses only; TLS still asks for the name."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        # To a type checker it is absent where anyio may be.
        self._backend: Any = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        """Look the name up, check all its addresses, and connect to one of them.

        Raises:
            Forbidden: An address must not be spoken to.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise httpcore.ConnectError(str(error)) from error
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"the name {host} is not found in time") from error
        addresses = self._allowed.check(host, [str(each[4][0]) for each in found])
        return await self._backend.connect_tcp(
            addresses[0], port, timeout, local_address, socket_options
        )

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)
