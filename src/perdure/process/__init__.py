"""The kernel: processes on asyncio loops, and the verbs to use them.

from perdure import process

pid = process.spawn_monitored(worker, 1)
process.send(pid, "work", "a")
event = await process.events().receive()
"""

from typing import NoReturn

from perdure.base.clock import Clock, SystemClock
from perdure.base.errors import is_normal, is_planned
from perdure.base.pid import MonitorRef, Pid
from perdure.base.settings import Overflow
from perdure.process.api import (
    ProcessOptions,
    Spawner,
    alive,
    call,
    cancel,
    context,
    events,
    exit,  # noqa: A004 - the word of OTP
    fail,
    get_options,
    inbox,
    info,
    kill,
    link,
    listen,
    monitor,
    monitored,
    pid_of,
    processes,
    register,
    registered,
    requests,
    run_process,
    self_pid,
    send,
    set_options,
    spawn,
    spawn_linked,
    spawn_linked_monitored,
    spawn_monitored,
    spawner,
    trap_links,
    unlink,
    unlisten,
    unmonitor,
    unregister,
    upgrade,
    whereis,
)
from perdure.process.channel import Channel, Selected, select
from perdure.process.event import Cancel, Event, EventKind, Exit, ExitResult, LinkDown, Message
from perdure.process.hosts import ProcessHost
from perdure.process.hosts.remote_info import full_info
from perdure.process.introspect import Info
from perdure.process.request import Request
from perdure.process.runtime import Runtime
from perdure.process.threads import offload
from perdure.process.timer import Ticker, Timer, after, sleep, ticker, timer
from perdure.process.waiter import State

pid = self_pid
terminate = kill

__all__ = [
    "Cancel",
    "Channel",
    "Clock",
    "Event",
    "EventKind",
    "Exit",
    "ExitResult",
    "Info",
    "LinkDown",
    "Message",
    "MonitorRef",
    "Overflow",
    "Pid",
    "ProcessHost",
    "ProcessOptions",
    "Request",
    "Runtime",
    "Selected",
    "Spawner",
    "State",
    "SystemClock",
    "Ticker",
    "Timer",
    "after",
    "alive",
    "call",
    "cancel",
    "context",
    "events",
    "exit",
    "fail",
    "full_info",
    "get_options",
    "inbox",
    "info",
    "is_normal",
    "is_planned",
    "kill",
    "link",
    "listen",
    "monitor",
    "monitored",
    "offload",
    "pid",
    "pid_of",
    "processes",
    "register",
    "registered",
    "requests",
    "run_process",
    "select",
    "self_pid",
    "send",
    "set_options",
    "sleep",
    "spawn",
    "spawn_linked",
    "spawn_linked_monitored",
    "spawn_monitored",
    "spawner",
    "terminate",
    "ticker",
    "timer",
    "trap_links",
    "unlink",
    "unlisten",
    "unmonitor",
    "unregister",
    "upgrade",
    "whereis",
]

# Names of OTP and Wippy that are spelled differently here.
_SPELLED = {
    "spawn_link": "process.spawn_linked",
    "spawn_monitor": "process.spawn_monitored",
    "demonitor": "process.unmonitor",
    "case_receive": "await process.select(channel, …)",
    "case_send": "channel.case_send(value)",
    "exec": "await process.run_process",
    "flag": "process.set_options(trap_links=True)",
    "lookup": "process.whereis",
    "new": "process.Channel(capacity)",
    "receive": "await process.inbox().receive()",
    "self": "process.self_pid",
    "send_after": "await process.sleep, then process.send",
}


def __getattr__(name: str) -> NoReturn:
    hint = f": write {_SPELLED[name]}" if name in _SPELLED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
