"""The app of `intervene`, and the workers that run it.

`python -m tests.programmes.intervene_crew SITE` is told by lines of its input to fork a worker
with the code of a deploy and with keys ("start 2 pdk_…,pdk_…"; "-" means no keys), or to send one
a signal ("signal 9 PID"). When the input ends, so do all of them.
"""

import json
import mmap
import os
import signal
import struct
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from perdure.app import App
from perdure.base.clock import BootClock, SystemClock
from perdure.base.encryption import Encryption
from perdure.engine.settings import WorkerSettings
from perdure.jobs.model import QueueLimit
from tests.programmes.intervene_jobs import add_older_jobs, rules
from tests.programmes.intervene_primitives import DEPLOYS, PACED, Code, add_newer_jobs

RATE: Final = QueueLimit(rate=20, per=1)
NO_KEYS: Final = "-"

_MACHINE: Final = SystemClock()


def settings(code: Code) -> WorkerSettings:
    """Return the settings of a worker that runs this code."""
    return WorkerSettings(
        concurrency=40,
        lease=code.lease,
        heartbeat="500ms",
        stop_before_expiry="1s",
        stuck_after="20s",
        keep_in_memory="50ms",
        poll="500ms",
        cancel_grace="100ms",
        drain_grace="1s",
        start_record_after="20ms",
        reap_every="100ms",
        expiry_every="100ms",
        max_claims=20,
    )


class SteppedClock:
    """The machine's clock, set by as many seconds as a file says."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._step = mmap.mmap(file.fileno(), 8)

    @staticmethod
    def create(path: Path) -> None:
        """Write a file that says 0."""
        path.write_bytes(struct.pack("d", 0.0))

    def set(self, seconds: float) -> None:
        """Set the clock of all who have this file."""
        self._step[:8] = struct.pack("d", seconds)

    def monotonic(self) -> float:
        """Return the time that nobody can set."""
        return BootClock.seconds()

    def monotonic_ns(self) -> int:
        """Return the same in nanoseconds."""
        return round(self.monotonic() * 1e9)

    def time(self) -> float:
        """Return the time that somebody has set."""
        (step,) = struct.unpack("d", self._step[:8])
        return _MACHINE.time() + step

    def time_ns(self) -> int:
        """Return the same in nanoseconds."""
        return round(self.time() * 1e9)


@dataclass(frozen=True)
class Site:
    """Where everything is."""

    url: str  # of the store
    port: int  # of the receiver
    shop: str  # the URL of the users' database
    clock: str  # the file of the clock of a SQLite store; empty: the server has a clock

    def app(self, code: Code = DEPLOYS[0], keys: str = "") -> App:
        """Make the app."""
        app = App(
            self.url,
            worker=settings(code),
            queues={"default": QueueLimit(), PACED: RATE},
            policy=rules(),
            encryption=Encryption(keys.split(",")) if keys else None,
        )
        app.clock = SteppedClock(Path(self.clock)) if self.clock else None
        add_newer_jobs(app, add_older_jobs(app, self.port), self.shop, code)
        return app

    def pack(self) -> str:
        """Spell it in one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def unpack(cls, text: str) -> Self:
        """Read what `pack` has written."""
        return cls(**json.loads(text))


# Workers


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(1)


def _work(app: App, pipe: int) -> None:
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    app.serve_sync()


class Crew:
    """The workers, as children of this process."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._living, self._held = os.pipe()  # closed when this process ends, however it does
        self._codes: dict[int, int | None] = {}  # None: it lives

    def start(self, deploy: int, keys: str) -> int:
        """Fork a worker."""
        pid = os.fork()
        if not pid:
            os.close(self._held)
            given = "" if keys == NO_KEYS else keys
            _work(self._site.app(DEPLOYS[deploy], given), self._living)
            os._exit(0)
        self._codes[pid] = None
        return pid

    def signal(self, number: int, pid: int) -> int:
        """Send a signal, if it still lives; 1: it does."""
        if self.code(pid) is not None:
            return 0
        os.kill(pid, number)
        return 1

    def code(self, pid: int) -> int | None:
        """Tell how a worker has ended; None: it lives."""
        if self._codes[pid] is None:
            found, status = os.waitpid(pid, os.WNOHANG)
            self._codes[pid] = os.waitstatus_to_exitcode(status) if found else None
        return self._codes[pid]

    def end(self) -> None:
        """Kill them all."""
        for pid in self._codes:
            self.signal(signal.SIGKILL, pid)


def main(site: Site) -> None:
    """Fork workers and signal them, as is asked for; answer each line with a number."""
    crew = Crew(site)
    for line in sys.stdin:
        match line.split():
            case ["start", deploy, keys]:
                answer = crew.start(int(deploy), keys)
            case ["signal", number, pid]:
                answer = crew.signal(int(number), int(pid))
            case _:
                raise SystemExit(f"what is {line!r}?")
        print(answer, flush=True)  # noqa: T201
    crew.end()


if __name__ == "__main__":
    main(Site.unpack(sys.argv[1]))
