"""What an error of a call says about whether the call has had its effect; pure.

Only two kinds of errors prove that nothing happened: the receiver refused the request, or the
request never left. Everything else leaves it in doubt, also an error of our own code
after the answer came. So an effect is *one* call: with two, the error of the second
would be taken for proof about the first.
"""

from typing import Any, Final

from perdure.base.errors import Refused
from perdure.jobs.effect import EffectState
from perdure.jobs.policy import http_status, leaves

_REFUSED: Final = range(400, 500)
# The receiver may have acted: it waited too long, has this key in hand, or counts it as too much.
_NOT_CERTAIN: Final = frozenset({408, 409, 425, 429})

# Names, since no client library is needed here: these errors come before a request is written.
_NEVER_SENT: Final = frozenset(
    {
        ("httpx", "ConnectError"),
        ("httpx", "ConnectTimeout"),
        ("httpx", "PoolTimeout"),
        ("httpx", "UnsupportedProtocol"),
        ("httpcore", "ConnectError"),
        ("httpcore", "ConnectTimeout"),
        ("httpcore", "PoolTimeout"),
        ("aiohttp", "ClientConnectorError"),
        ("aiosmtplib", "SMTPConnectError"),
        ("socket", "gaierror"),  # the name of the receiver has no address
    }
)


def state_after(error: BaseException, *, repeated: bool = False) -> EffectState:
    """Tell what is known of an effect whose call raised this: FAILED or IN_DOUBT.

    If the call was `repeated`, what became of this one proves nothing about the one before:
    that it never left, or met a door that was closed meanwhile.
    """
    proved = not repeated and all(_proves_nothing_happened(each) for each in leaves(error))
    return EffectState.FAILED if proved else EffectState.IN_DOUBT


def is_refusal(error: BaseException) -> bool:
    """Tell whether the receiver has turned the call away: to repeat it will not help."""
    each = list(leaves(error))
    return all(map(_proves_nothing_happened, each)) and any(map(_was_refused, each))


def _proves_nothing_happened(error: BaseException) -> bool:
    if _was_refused(error) or isinstance(error, ConnectionRefusedError):
        return True
    return any(_name(kind) in _NEVER_SENT for kind in type(error).__mro__)


def _was_refused(error: BaseException) -> bool:
    if isinstance(error, Refused):
        return True
    status = http_status(error)
    return status is not None and status in _REFUSED and status not in _NOT_CERTAIN


def _name(kind: type[Any]) -> tuple[str, str]:
    return kind.__module__.split(".")[0], kind.__name__
