"""How a supervisor stops one child."""

import asyncio

from perdure.base.errors import Shutdown
from perdure.otp.spec import BRUTAL_KILL
from perdure.otp.ward import Ward
from perdure.process.channel import Channel, select
from perdure.process.death import kill
from perdure.process.process import Process


class Farewell:
    """The stop of one child: a polite signal, a limit, a kill."""

    def __init__(self, me: Process, ward: Ward) -> None:
        assert ward.process is not None
        self.ward = ward
        self.process = process = ward.process
        self._gone: Channel[None] = Channel()
        self._timer: asyncio.TimerHandle | None = None
        process.add_done_callback(self._is_gone)
        shutdown = ward.spec.shutdown
        if shutdown is BRUTAL_KILL:
            kill(process)
        elif not process.done():
            process.exit_signal(me.pid, Shutdown())
            if shutdown is not None:
                self._timer = me.loop.call_later(shutdown, kill, process, "it did not stop in time")

    def _is_gone(self, _: object) -> None:
        self.forget()
        self._gone.close()

    async def over(self) -> None:
        """Wait until the process is dead."""
        await select(self._gone)

    def forget(self) -> None:
        """Disarm the kill."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
