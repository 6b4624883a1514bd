"""A supervisor on paper: what must be written in the diary, worked out without any process.

It is written on its own, from the rules, and shares no code with the real one.
"""

from dataclasses import dataclass, field

WINDOW = 5.0


class GivesUp(Exception):
    """There were too many restarts."""


@dataclass
class Model:
    strategy: str
    max_restarts: int
    rules: dict[str, str]  # restart by id, in start order
    now: float = 0.0
    alive: bool = True
    running: set[str] = field(default_factory=set[str])
    failing: dict[str, int] = field(default_factory=dict[str, int])
    restarts: list[float] = field(default_factory=list[float])
    diary: list[str] = field(default_factory=list[str])

    # Orders

    def begin(self) -> None:
        for id in self.rules:
            self._start(id)

    def end(self, id: str, how: str) -> None:
        """A child ends."""
        if id not in self.running:
            return
        self.running.remove(id)
        self.diary += [f"{how} {id}", f"-{id}"]
        rule = self.rules[id]
        if rule == "temporary":
            del self.rules[id]
        elif rule == "permanent" or how == "crash":
            self._restart(id)

    def terminate(self, id: str) -> str | None:
        if id not in self.rules:
            return "not_found"
        self._stop([id])
        if self.rules[id] == "temporary":
            del self.rules[id]
        return None

    def start_again(self, id: str) -> str | None:
        if id not in self.rules:
            return "not_found"
        if id in self.running:
            return "running"
        return None if self._start(id) else "failed"

    def delete(self, id: str) -> str | None:
        if id not in self.rules:
            return "not_found"
        if id in self.running:
            return "running"
        del self.rules[id]
        return None

    def add(self, id: str, rule: str) -> str | None:
        if id in self.running:
            return "already_started"
        if id in self.rules:
            return "already_present"
        self.rules[id] = rule
        if not self._start(id):
            del self.rules[id]
            return "failed"
        return None

    def stop(self) -> None:
        self._stop(list(self.rules))
        self.alive = False

    # Rules

    def _restart(self, failed: str) -> None:
        group = self._group(failed)
        try:
            while failed:
                self._count()
                failed = self._restart_group(group)
                if failed and self.strategy != "one_for_one":
                    group = list(self.rules)[list(self.rules).index(failed) :]
        except GivesUp:
            self.stop()

    def _group(self, failed: str) -> list[str]:
        ids = list(self.rules)
        match self.strategy:
            case "one_for_one":
                return [failed]
            case "one_for_all":
                return ids
            case _:
                return ids[ids.index(failed) :]

    def _restart_group(self, group: list[str]) -> str:
        """Give the child that did not start, if there is one."""
        self._stop(group)
        for id in group:
            if self.rules[id] == "temporary":
                del self.rules[id]
            elif not self._start(id):
                return id
        return ""

    def _count(self) -> None:
        self.restarts.append(self.now)
        recent = [then for then in self.restarts if self.now - then <= WINDOW]
        if len(recent) > self.max_restarts:
            raise GivesUp

    def _start(self, id: str) -> bool:
        if self.failing.get(id, 0):
            self.failing[id] -= 1
            self.diary.append(f"!{id}")
            return False
        self.diary.append(f"+{id}")
        self.running.add(id)
        return True

    def _stop(self, ids: list[str]) -> None:
        for id in reversed(ids):
            if id in self.running:
                self.running.remove(id)
                self.diary.append(f"-{id}")
