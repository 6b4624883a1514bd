"""The walks: how many calls, over how many files, one operation takes through Perdure's own code.

Time says what an operation costs the machine. A walk says what it costs whoever reads or debugs
it: each call is a step into another function, each switch another file to open.

``step``           one durable step: from ``ctx.run`` to its result, committed to SQLite
``gather``         two gathered steps, which the thread of the database commits together
``send``           a message: from ``process.send`` until its receiver has it
``call``           ``process.call``: from the request to the reply
``crash``          a supervised process crashes: a linked one dies with it, a monitor is told of
                   both, the crash is reported, and the supervisor starts the process anew
``effect``         one effect of a step: from ``ctx.effect`` to its result
``approval_link``  the form behind the link of a mail: from its POST to the answer

``calls`` are calls of Python functions, ``files`` the files that these are in, and ``switches``
counts how often a call is in another file than the call before it.

A walk is repeated, and the shortest is its figure: a heartbeat or a timer that falls into it makes
it longer, and nothing makes it shorter. So two runs agree, but for the one or two calls by which
a thread that has already gone to sleep is woken.

``python -m bench.walk step`` prints the calls of a walk one by one.
"""

import asyncio
import itertools
import logging
import re
import select
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from email.message import EmailMessage
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlencode

import perdure
from bench.outcome import Options, Outcome
from bench.table import render
from perdure import App, JobContext, Secret, StepContext, process
from perdure.approvals import Contact, People, Person, Policy
from perdure.notify.links import LinkTokens
from perdure.notify.mail import MailChannel, MailSettings
from perdure.notify.web import ApprovalWeb, LinkPages
from perdure.otp import Supervisor, child

PACKAGE = str(Path(perdure.__file__).parent)
WARM_UP = 5
REPETITIONS = 25


class Walk(NamedTuple):
    """What one operation takes."""

    calls: int
    files: int
    switches: int


class Call(NamedTuple):
    """One call of a function: its file, as from the folder of the package, and its name."""

    file: str
    function: str


Trace = list[list[Call]]  # the calls of a walk in order, thread by thread


class Wanted(NamedTuple):
    """The bounds of a walk; None where there is none."""

    calls: int
    files: int
    switches: int | None = None


WANTED = {
    "step": Wanted(55, 14, 30),
    "gather": Wanted(110, 16, 60),
    "send": Wanted(12, 8, 10),
    "call": Wanted(27, 10, 18),
    "crash": Wanted(150, 16),
    "effect": Wanted(60, 12),
    "approval_link": Wanted(220, 16),
}


def run(options: Options) -> Outcome:
    """Measure the walks; ``--only`` names some of them, and ``--quick`` changes nothing.

    Raises:
        ValueError: A name in ``options.only`` is no walk.
    """
    unknown = [name for name in options.only if name not in WALKS]
    if unknown:
        raise ValueError(f"no such walk: {', '.join(unknown)}; there are {', '.join(WALKS)}")
    names = [name for name in WALKS if not options.only or name in options.only]
    found = {name: count(shortest(name)) for name in names}
    return Outcome(
        _text(found), {name: walk._asdict() for name, walk in found.items()}, only_figures=True
    )


def shortest(name: str) -> Trace:
    """Take a walk again and again; return the shortest."""
    recorder = Recorder()
    with recorder.in_new_threads(), _unprinted_log(), TemporaryDirectory() as folder:
        perdure.run(WALKS[name], recorder, Path(folder))
    return min(recorder.traces[WARM_UP:], key=count)


def count(trace: Trace) -> Walk:
    """Count a trace."""
    pairs = itertools.chain(*map(itertools.pairwise, trace))
    return Walk(
        calls=sum(map(len, trace)),
        files=len({call.file for call in itertools.chain(*trace)}),
        switches=sum(one.file != other.file for one, other in pairs),
    )


@contextmanager
def _unprinted_log() -> Generator[None]:
    """Drop what is logged, but only at the end of its way: a crash is reported at its full cost."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _text(found: Mapping[str, Walk]) -> str:
    rows = [
        [name, *map(str, walk), _bounds(WANTED[name]), _verdict(walk, WANTED[name])]
        for name, walk in found.items()
    ]
    head = ["walk", "calls", "files", "switches", "wanted at most", ""]
    return f"Walks through the code of Perdure\n\n{render(head, rows)}"


def _bounds(wanted: Wanted) -> str:
    return " / ".join("-" if bound is None else str(bound) for bound in wanted)


def _verdict(walk: Walk, wanted: Wanted) -> str:
    pairs = zip(walk, wanted, strict=True)
    return "met" if all(bound is None or taken <= bound for taken, bound in pairs) else "MISSED"


# Recording
#
# The profiler calls us at every call, in each thread by itself. The loop's thread belongs to the
# walk from `begin` to `end`: whatever it does meanwhile counts.
#
# A thread of the database is another matter. It also wakes up by itself, when the file was
# written, looks whether others have written to it, and sleeps again; when that happens is up to
# the machine. Of such a thread we therefore count what it does from its waking until it hands
# a result to the loop. If it hands over nothing before it sleeps again, it was not for the walk.
#
# Each thread is a sequence of calls of its own. Which thread runs first is no matter of the code,
# so a change from one to the other is no switch.

_ASLEEP = Call("", "asleep")
_HANDED_OVER = Call("", "handed over")
_SLEEPS = frozenset({"poll", "select", "get", "acquire"})
_SLEEPERS = (type(select.poll()), type(threading.Lock()), SimpleQueue)
# A part of the function around it, which has a frame of its own only in some versions of Python.
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


class Recorder:
    """Records walks, one after the other: ``begin``, the operation, ``end``."""

    def __init__(self, package: str = PACKAGE) -> None:
        """Count the functions in files of this folder alone."""
        self.traces: list[Trace] = []
        self._package = package + "/"
        self._recording = False
        self._loop: list[Call] = []
        self._others: dict[int, list[Call]] = {}

    def begin(self) -> None:
        """Count from here on."""
        self._loop, self._others = [], {}
        self._recording = True
        sys.setprofile(self._in_loop)

    def end(self) -> None:
        """Keep what was counted since ``begin``."""
        sys.setprofile(None)
        self._recording = False
        others = map(_handed_over, self._others.values())
        self.traces.append([self._loop, *filter(None, others)])

    @contextmanager
    def in_new_threads(self) -> Generator[None]:
        """Record in the threads that start in this block, too."""
        threading.setprofile(self._in_other)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _in_loop(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._counts(frame.f_code):
            self._loop.append(self._call(frame.f_code))

    def _in_other(self, frame: FrameType, event: str, argument: object) -> None:
        if not self._recording:
            return
        seen = self._others.setdefault(threading.get_ident(), [])
        if event == "c_call" and _is_sleep(argument):
            seen.append(_ASLEEP)
        elif event == "call" and frame.f_code.co_name == "call_soon_threadsafe":
            seen.append(_HANDED_OVER)
        elif event == "call" and self._counts(frame.f_code):
            seen.append(self._call(frame.f_code))

    def _counts(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._package) and code.co_name not in _COMPREHENSIONS

    def _call(self, code: CodeType) -> Call:
        return Call(code.co_filename.removeprefix(self._package), code.co_qualname)


def _is_sleep(function: Any) -> bool:
    return function.__name__ in _SLEEPS and isinstance(function.__self__, _SLEEPERS)


def _handed_over(seen: Sequence[Call]) -> list[Call]:
    """Return the calls of a thread between its waking and its handing over."""
    calls: list[Call] = []
    since_waking: list[Call] = []
    for each in seen:
        if each == _HANDED_OVER:
            calls += since_waking
        if each in (_HANDED_OVER, _ASLEEP):
            since_waking = []
        else:
            since_waking.append(each)
    return calls


# Processes


async def _send(recorder: Recorder, _: Path) -> None:
    sender = process.self_pid()

    async def receiver() -> None:
        while True:
            await process.inbox().receive()
            recorder.end()
            process.send(sender, "received")

    partner = process.spawn(receiver)
    for number in range(WARM_UP + REPETITIONS):
        await _idle()
        recorder.begin()
        process.send(partner, "number", number)
        await process.inbox().receive()


async def _call(recorder: Recorder, _: Path) -> None:
    async def server() -> None:
        requests = process.requests()
        while True:
            request = await requests.receive()
            request.reply(request.body)

    partner = process.spawn(server)
    for number in range(WARM_UP + REPETITIONS):
        await _idle()
        recorder.begin()
        await process.call(partner, number, timeout="5s")
        recorder.end()


async def _crash(recorder: Recorder, _folder: Path) -> None:
    watcher = process.self_pid()
    inbox, events = process.inbox(), process.events()

    async def fragile() -> None:
        process.send(watcher, "up", process.self_pid())
        await process.inbox().receive()
        raise RuntimeError("as it was told")

    async def linked(to: process.Pid) -> None:
        process.link(to)
        await process.inbox().receive()

    async with Supervisor([child(fragile)], max_restarts=WARM_UP + REPETITIONS):
        pid = (await inbox.receive()).payload
        for _ in range(WARM_UP + REPETITIONS):
            process.spawn_monitored(linked, pid)
            process.monitor(pid)
            await _idle()
            recorder.begin()
            process.send(pid, "crash")
            await events.receive()
            await events.receive()
            pid = (await inbox.receive()).payload
            recorder.end()


async def _idle() -> None:
    """Let the loop do all that is left to do, so that a walk begins at rest."""
    for _ in range(10):
        await asyncio.sleep(0)


# Durable jobs


async def _step(recorder: Recorder, folder: Path) -> None:
    app = _app(folder)

    @app.step
    async def step(number: int) -> int:
        return number

    @app.job
    async def job() -> None:
        for number in range(WARM_UP + REPETITIONS):
            recorder.begin()
            await step(number)
            recorder.end()

    await _finish(app, job)


async def _gather(recorder: Recorder, folder: Path) -> None:
    app = _app(folder)

    @app.step
    async def step(number: int) -> int:
        return number

    @app.job
    async def job(ctx: JobContext) -> None:
        for number in range(WARM_UP + REPETITIONS):
            recorder.begin()
            await ctx.gather(step(number), step(-number))
            recorder.end()

    await _finish(app, job)


async def _effect(recorder: Recorder, folder: Path) -> None:
    app = _app(folder)

    async def charge(_: str) -> str:
        return "receipt"

    @app.step
    async def step(ctx: StepContext, _: int) -> None:
        recorder.begin()
        await ctx.effect("payment", charge, target="bank")
        recorder.end()

    @app.job
    async def job() -> None:
        for number in range(WARM_UP + REPETITIONS):
            await step(number)

    await _finish(app, job)


def _app(folder: Path) -> App:
    return App(f"sqlite:///{folder / 'walk.db'}")


async def _finish(app: App, job: Any) -> None:
    async with app, app.running():
        await (await app.submit(job())).result()


# People


async def _approval_link(recorder: Recorder, folder: Path) -> None:
    """Have jobs ask by mail, then answer as a web server does that has no worker beside it."""
    app = _app(folder)
    ann = Person(id="ann", tenant="default", roles=frozenset({"approver"}))
    people = People([Contact(person=ann, email="ann@example.com")])
    tokens = LinkTokens((Secret("a key of at least thirty-two bytes"),))
    settings = MailSettings(
        host="mail.example.com", sender="perdure@example.com", base_url="https://perdure.example"
    )
    app.policy = Policy(
        people=people, channels=(MailChannel(settings, app.approval_store, people, tokens),)
    )
    web = ApprovalWeb(app.approval_store, people, LinkPages(app.approval_store, people, tokens))

    @app.job
    async def job(ctx: JobContext) -> None:
        await ctx.approve("Ship it?", risk="medium")

    async with app:
        for form in await _forms(app, job, WARM_UP + REPETITIONS):
            await _post(web, form, recorder)


async def _forms(app: App, job: Any, count: int) -> list[bytes]:
    """Have so many jobs ask; return what their approver types, each into the form of a link."""
    mails: asyncio.Queue[EmailMessage] = asyncio.Queue()

    async def send(mail: EmailMessage, **_: object) -> None:
        mails.put_nowait(mail)

    with mock.patch("aiosmtplib.send", send):
        async with app.running():
            for _ in range(count):
                await app.submit(job(), user="rob")
            return [_form(await mails.get()) for _ in range(count)]


def _form(mail: EmailMessage) -> bytes:
    text = mail.get_body(("plain",))
    assert text
    found = re.search(r"/approvals/link#(\S+)[^\n]*\n[^\n]*: (\d{4} \d{4})", text.get_content())
    assert found
    token, code = found.groups()
    return urlencode({"token": token, "code": code, "verdict": "approve"}).encode()


async def _post(web: ApprovalWeb, form: bytes, recorder: Recorder) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "https",
        "path": "/approvals/decide",
        "headers": [(b"host", b"perdure.example")],
    }
    sent: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": form, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await _idle()
    recorder.begin()
    await web(scope, receive, send)
    recorder.end()
    if sent[0]["status"] != 200:
        raise RuntimeError(f"the answer was not taken: {sent}")


WALKS: dict[str, Callable[[Recorder, Path], Coroutine[Any, Any, None]]] = {
    "step": _step,
    "gather": _gather,
    "send": _send,
    "call": _call,
    "crash": _crash,
    "effect": _effect,
    "approval_link": _approval_link,
}


if __name__ == "__main__":
    for number, thread in enumerate(shortest(sys.argv[1])):
        print("in the loop's thread" if number == 0 else "\nin another thread")
        for call in thread:
            print(f"  {call.file:40} {call.function}")
