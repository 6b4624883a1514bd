"""The dispatcher: hands each job to an idle worker.

It monitors the workers. When one dies, another retries its job, but only three times: a poisoned
job would kill worker after worker.
"""

import itertools
import logging
from collections import deque
from dataclasses import replace

from examples.pool.job import Job
from examples.pool.supervisor import supervise
from perdure import process
from perdure.process import Pid, select

log = logging.getLogger(__name__)

ATTEMPTS = 3


async def dispatch(worker_count: int, job_count: int | None) -> "Jobs":
    """Get all jobs done, or as many as possible until somebody cancels us."""
    process.register("dispatcher")
    supervisor = process.spawn_linked_monitored(supervise, worker_count)
    jobs = Jobs(job_count)

    while not jobs.all_settled:
        jobs.hand_out()
        news = await next_news()
        if isinstance(news, process.Cancel):
            log.info("Asked to stop, the workers finish what they are doing")
            break
        jobs.note(news)

    # The supervisor ends its workers first: what they have finished until then counts.
    process.cancel(supervisor, "3s")
    while not isinstance(news := await next_news(), process.Exit) or news.sender is not supervisor:
        jobs.note(news)
    log.info("All workers have ended")
    return jobs


async def next_news() -> process.Message | process.Event:
    """Wait for a message or an event; messages first, since a result counts more than a death."""
    news: process.Message | process.Event = (await select(process.inbox(), process.events())).value
    return news


class Jobs:
    """Which jobs wait, which worker does which, and what became of the others."""

    def __init__(self, count: int | None) -> None:
        """Begin with `count` new jobs; None: without end."""
        self.count = count
        self.new = map(Job, itertools.count(1) if count is None else range(1, count + 1))
        self.again: deque[Job] = deque()
        self.idle: list[Pid] = []
        self.busy: dict[Pid, Job] = {}
        self.done = 0
        self.crashes = 0
        self.given_up: list[Job] = []

    @property
    def all_settled(self) -> bool:
        return self.done + len(self.given_up) == self.count

    def hand_out(self) -> None:
        """Give every idle worker a job, as long as there are jobs."""
        while self.idle and (job := self.again.popleft() if self.again else next(self.new, None)):
            worker = self.idle.pop(0)
            self.busy[worker] = job
            process.send(worker, "work", job)

    def note(self, news: process.Message | process.Event) -> None:
        """Record what happened."""
        match news:
            case process.Message(topic="ready", sender=Pid() as worker):
                process.monitor(worker)
                self.idle.append(worker)

            case process.Message(topic="result", sender=Pid() as worker):
                del self.busy[worker]
                self.idle.append(worker)
                self.done += 1
                if self.done % 10 == 0:
                    log.info("%s jobs done", self.done)

            case process.Exit(sender=worker) if worker in self.busy:
                self.crashes += 1
                self.settle_or_repeat(self.busy.pop(worker))

            case process.Exit(sender=worker) if worker in self.idle:
                self.idle.remove(worker)

            case _:
                pass

    def settle_or_repeat(self, job: Job) -> None:
        """Decide about a job whose worker died."""
        if job.attempt < ATTEMPTS:
            log.warning("Attempt %s of %s at %s failed, again", job.attempt, ATTEMPTS, job)
            self.again.append(replace(job, attempt=job.attempt + 1))
        else:
            log.warning("Attempt %s of %s at %s failed, given up", job.attempt, ATTEMPTS, job)
            self.given_up.append(job)
