"""Who keeps a host running: a process that starts it, and stops it when its supervisor says so."""

from perdure.base.pid import Pid
from perdure.entries.guardian import tell
from perdure.entries.plan import HostPlan
from perdure.entries.restart import State
from perdure.otp.start import Ack
from perdure.process.current import current
from perdure.process.event import Cancel, Exit, LinkDown
from perdure.process.exits import spread
from perdure.process.hosts import ProcessHost
from perdure.process.process import Process
from perdure.process.signal import monitor


async def keep(ack: Ack, plan: HostPlan, host: ProcessHost) -> None:
    """Be the keeper of a host."""
    me = current("host")
    me.trap_links = True
    tell(plan.id, State.STARTING)
    await host.start()
    monitor(me, host.pid)
    try:
        tell(plan.id, State.RUNNING, kind=plan.size.kind, workers=host.workers)
        ack.ready(me)
        reason = await _end_wanted(me, plan.id, host.pid)
    finally:
        if host.running:  # else it has ended by itself, which was told
            tell(plan.id, State.STOPPING)
            await host.stop(plan.lifecycle.stop_timeout)
            tell(plan.id, State.STOPPED)
    if reason is not None:
        raise reason


async def _end_wanted(me: Process, id: str, host: Pid) -> BaseException | None:
    """Wait until the keeper is to end; give the reason."""
    while True:
        match await me.events().receive():
            case Cancel():
                return None
            case LinkDown(sender=sender, error=error) if sender is me.parent:
                return spread(sender, error)
            case Exit(sender=sender, result=result) if sender is host:
                state = State.STOPPED if result.ok else State.FAILED
                tell(id, state, reason=result.error)
                return result.error  # it gave up, and is to be started anew
            case _:
                pass
