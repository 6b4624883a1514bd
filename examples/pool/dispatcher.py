"""The dispatcher: hands each job to a worker that has nothing to do.

It monitors the workers.
When one dies, its job is tried again by another, but only three times:
a poisoned job would kill worker after worker.
"""

import itertools
import logging
from collections import deque
from dataclasses import replace

from examples.pool.job import Job
from examples.pool.supervisor import supervise
from perdure import Pid, process, select

log = logging.getLogger(__name__)

ATTEMPTS = 3


class Dispatcher:
    """Who does which job, and what became of the others."""

    def __init__(self, total: int | None) -> None:
        """Have `total` jobs to do; None: for ever."""
        numbers = itertools.count(1) if total is None else range(1, total + 1)
        self.total = total
        self.new = map(Job, numbers)
        self.again: deque[Job] = deque()
        self.idle: deque[Pid] = deque()
        self.busy: dict[Pid, Job] = {}
        self.done = self.crashes = 0
        self.given_up: list[Job] = []

    def hand_out(self) -> None:
        """Give a job to each worker that has none, as long as there are jobs."""
        while self.idle and (job := self.again.popleft() if self.again else next(self.new, None)):
            worker = self.idle.popleft()
            self.busy[worker] = job
            process.send(worker, "work", job)

    def worker_came(self, worker: Pid) -> None:
        process.monitor(worker)
        self.idle.append(worker)

    def worker_finished(self, worker: Pid) -> None:
        del self.busy[worker]
        self.idle.append(worker)
        self.done += 1
        if self.done % 10 == 0:
            log.info("%s jobs done", self.done if self.total is None else self.progress)

    def worker_died(self, worker: Pid) -> None:
        job = self.busy.pop(worker, None)
        if job is None:  # it had nothing to do
            self.idle.remove(worker)
            return
        self.crashes += 1
        if job.attempt < ATTEMPTS:
            log.warning("%s failed at attempt %s of %s, again", job, job.attempt, ATTEMPTS)
            self.again.append(replace(job, attempt=job.attempt + 1))
        else:
            log.error("%s failed %s times, given up", job, ATTEMPTS)
            self.given_up.append(job)
