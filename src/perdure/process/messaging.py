"""The verbs of talking: send, receive, listen, call."""

from typing import Any

from perdure.base.duration import Duration
from perdure.base.errors import NoProcess
from perdure.base.pid import Pid
from perdure.process.channel import Channel
from perdure.process.current import current, own_process
from perdure.process.event import Event, Message
from perdure.process.names import Destination, holder_of
from perdure.process.process import Process
from perdure.process.reach import reach
from perdure.process.request import Request, ask

# Topics that were found good: most programs have a few, and checking one is dearer than this.
_TOPICS_REMEMBERED = 1024
_KNOWN_TOPICS: set[str] = set()


def send(dest: Destination, topic: str, payload: Any = None, /, *more: Any) -> bool:
    """Send a message; never waits.

    Without a payload the receiver gets None, with one that value, with more a list of them.
    The payload is handed over as it is, not copied.

    Returns:
        False if the pid is dead: processes race with death all the time.

    Raises:
        NotRegistered: No process has that name.
        ValueError: The topic is empty or begins with "@", which is the runtime's own.
        MailboxFull: The receiver has a limit and the overflow rule "reject".
    """
    try:
        if topic not in _KNOWN_TOPICS:
            check_topic(topic)
    except TypeError:
        raise TypeError(f"a topic is text, not {topic!r}") from None
    sender = own_process(None)
    if sender is None:
        origin = None
    else:
        origin = sender.pid
        if origin.target is None:
            raise NoProcess(origin, "send")
    target: Process | None = dest.target if type(dest) is Pid else locate(dest, "send")
    if target is None:
        return False
    if more:
        payload = [payload, *more]
    return target.deliver(Message(topic, payload, origin))


def inbox() -> Channel[Message]:
    """Give the channel of all messages whose topic has no listener."""
    return current("inbox").inbox()


def events() -> Channel[Event]:
    """Give the channel of `Exit`, `LinkDown` and `Cancel` events."""
    return current("events").events()


def listen(topic: str, *, message: bool = False) -> Channel[Any]:
    """Give the channel of one topic: bare payloads, or whole messages with `message=True`."""
    check_topic(topic)
    return current("listen").listen(topic, whole=message)


def unlisten(channel: Channel[Any]) -> None:
    """Close the channel of a topic; later messages go to the inbox again."""
    current("unlisten").unlisten(channel)


async def call(dest: Destination, request: Any, timeout: Duration = 5.0) -> Any:
    """Ask a process and wait for its reply.

    The other process gets a `Request` from `requests()` and calls its `reply`.

    Raises:
        CallTimeout: No reply came in time; a late one is dropped.
        CallExit: The process died, or was dead; `reason` says why.
        NotRegistered: No process has that name.
    """
    target: Process | None = dest.target if type(dest) is Pid else locate(dest, "call")
    pid = dest if type(dest) is Pid else target.pid  # pyright: ignore[reportOptionalMemberAccess]
    return await ask(target, pid, request, timeout)


def requests() -> Channel[Request[Any]]:
    """Give the channel of requests that others made by `call`."""
    return current("requests").requests()


def locate(dest: Destination, verb: str) -> Process | None:
    """Find the process behind a pid or a name; None if the pid is dead."""
    runtime = current(verb).runtime
    if type(dest) is Pid:
        return reach(dest, runtime)
    return reach(holder_of(runtime.names, dest).pid, runtime)


def alive_or_raise(dest: Destination, verb: str) -> Process:
    """Find the living process behind a pid or a name."""
    target = locate(dest, verb)
    if target is None:
        assert isinstance(dest, Pid)
        raise NoProcess(dest, verb)
    return target


def check_topic(topic: object) -> None:
    """Refuse what cannot be a topic."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is text, not {topic!r}")
    if not topic:
        raise ValueError("a topic must not be empty")
    if topic.startswith("@"):
        raise ValueError(f"topic {topic!r}: topics that begin with '@' are the runtime's own")
    if len(_KNOWN_TOPICS) < _TOPICS_REMEMBERED:
        _KNOWN_TOPICS.add(topic)
