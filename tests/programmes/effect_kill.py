"""Kill -9 the worker at every named point of an effect and of its undo; count what really happened.

`python -m tests.programmes.effect_kill --runs 300 [--url …]`

A receiver that honours keys must have acted exactly once for each deed. One that does not may
never have acted twice, and if it has not acted, the job does not say that it has: it is in doubt.
A person, who can look at the receiver, then settles it, and the job comes to its right end.
"""

import argparse
import asyncio
import itertools
import json
import random
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any, Final, Self

import perdure
from perdure.app import App
from perdure.engine.handle import Handle
from perdure.jobs.state import ENDED, JobState
from tests.programmes.effect_worker import build
from tests.support.gateway import Gateway, Manner

POINTS: Final = (
    *("before_intent", "after_intent", "after_call", "before_step_commit", "after_step_commit"),
    *("before_undo", "after_undo"),
)
MANNERS: Final[tuple[Manner, ...]] = ("honours", "ignores", "errs", "forgets")
DEEDS: Final = ("/pay", "/reserve", "/refund", "/release")
_LIVES: Final = {"honours": 3600.0, "errs": 3600.0, "ignores": 3600.0, "forgets": 0.0}
_LONGEST: Final = 60.0


@dataclass
class Tally:
    """What was done and found."""

    runs: int = 0
    deaths: int = 0
    doubts: int = 0
    wrong: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Case:
    """One run: who receives, whether the order is good, where the worker dies."""

    manner: Manner
    good: bool
    crash: str

    @property
    def knows_keys(self) -> bool:
        return self.manner in ("honours", "errs")


def cases(seed: int) -> list[Case]:
    """All of them, in an order by chance: the point, and the how manyth time it is passed."""
    numbers = range(1, 5)
    found = [
        Case(manner, good, f"{point}:{number}")
        for manner, good, point, number in itertools.product(
            MANNERS, (True, False), POINTS, numbers
        )
        if _comes_by(good, point, number)
    ]
    random.Random(seed).shuffle(found)
    # The hardest come first: a deed that is done, and nobody has heard of it.
    return sorted(found, key=lambda case: not case.crash.startswith("after_call:1"))


def _comes_by(good: bool, point: str, number: int) -> bool:
    if point.endswith("undo"):
        return not good and number <= 2
    return number <= (2 if good else 4)


class Zygote:
    """A process that forks workers."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.programmes.effect_worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def work(self, **wanted: Any) -> int:
        """Have a worker; give its exit code when it has died."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        await self._process.stdout.readline()
        return int(await self._process.stdout.readline())


async def campaign(url: str, runs: int, seed: int = 1) -> Tally:
    """Run so many cases, in turn."""
    tally = Tally()
    async with Zygote() as zygote:
        for case in itertools.islice(itertools.cycle(cases(seed)), runs):
            async with Gateway(case.manner) as gateway:
                async with asyncio.timeout(_LONGEST):
                    found = await _run(url, zygote, gateway, case, tally)
            tally.runs += 1
            tally.wrong += [f"{case}: {each}" for each in found]
    return tally


async def _run(url: str, zygote: Zygote, gateway: Gateway, case: Case, tally: Tally) -> list[str]:
    in_doubt = "ask" if case.manner == "ignores" else "replay"
    app = build(url, gateway.url, in_doubt, _LIVES[case.manner])
    try:
        handle = await app.submit(app.find_job("order")(case.good))
        code = await zygote.work(
            url=url,
            gateway=gateway.url,
            in_doubt=in_doubt,
            key_ttl=_LIVES[case.manner],
            crash=case.crash,
        )
        if code != -signal.SIGKILL:
            return [f"the worker ended with {code}"]
        tally.deaths += 1
        if case.manner == "forgets":
            gateway.forget()
        async with app.running():
            return await _see_to_end(app, handle, gateway, case, tally)
    finally:
        await app.close()


async def _see_to_end(
    app: App, handle: Handle[Any], gateway: Gateway, case: Case, tally: Tally
) -> list[str]:
    """Let the job come to its end; where it is in doubt, look at the receiver and say so."""
    wrong: list[str] = []
    while (state := await handle.status()) not in ENDED:
        wrong += _twice(gateway)
        if state is JobState.NEEDS_ATTENTION:
            tally.doubts += 1
            if case.knows_keys:
                wrong.append(f"in doubt: {(await handle.job()).error!r}")
            await _say_what_happened(handle, gateway)
        if wrong:
            return wrong
        await perdure.process.sleep("10ms")
    del app
    return [*wrong, *_twice(gateway), *await _end_is_right(handle, gateway, case)]


def _twice(gateway: Gateway) -> list[str]:
    return [f"{path} was done {n} times" for path, n in gateway.done.items() if n > 1]


async def _say_what_happened(handle: Handle[Any], gateway: Gateway) -> None:
    for line in await handle.effects():
        if line.state != "IN_DOUBT":
            continue
        acted = next((path for path, key in gateway.acts if key == line.key), None)
        if acted is None:
            await handle.resolve(line.no, "did not happen", by="kim")
        else:
            reply = {"status": 200, "headers": {}, "body": {"id": "by hand"}}
            await handle.resolve(line.no, "happened", result=reply, by="kim")
        return
    raise AssertionError(f"nothing is in doubt: {(await handle.job()).error!r}")


async def _end_is_right(handle: Handle[Any], gateway: Gateway, case: Case) -> list[str]:
    wrong: list[str] = []
    state = await handle.status()
    right = JobState.COMPLETED if case.good else JobState.COMPENSATED
    if state is not right:
        wrong.append(f"it ended as {state}: {(await handle.job()).error!r}")
    wanted = DEEDS[:2] if case.good else DEEDS
    wrong += [
        f"{path} was done {gateway.done[path]} times" for path in wanted if gateway.done[path] != 1
    ]
    order = [path for path, _ in gateway.acts]
    if not case.good and order != ["/pay", "/reserve", "/release", "/refund"]:
        wrong.append(f"the order was {order}")
    lines = [line for line in await handle.effects() if line.state in ("INTENT", "IN_DOUBT")]
    return wrong + [f"{line.kind} is left {line.state}" for line in lines]


def main() -> None:
    """Run the long programme and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{folder}/jobs.db"
        tally = perdure.run(campaign, url, options.runs, options.seed)
    print(tally)  # noqa: T201
    if tally.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
