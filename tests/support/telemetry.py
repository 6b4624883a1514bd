"""A handler and a clock with which to look at telemetry."""

from dataclasses import dataclass, field
from typing import Any

from perdure.base.telemetry import Event, Values


@dataclass
class Recorder:
    """A handler that keeps what it is told."""

    seen: list[tuple[Event, Values, Values, object]] = field(
        default_factory=list[tuple[Event, Values, Values, object]]
    )

    def __call__(self, event: Event, measurements: Values, metadata: Values, config: Any) -> None:
        self.seen.append((event, measurements, metadata, config))

    @property
    def events(self) -> list[Event]:
        return [event for event, *_ in self.seen]


class FixedClock:
    """Goes forward by a millisecond at each reading."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def monotonic_ns(self) -> int:
        self.now += 1_000_000
        return self.now

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9

    def time_ns(self) -> int:
        return 1_700_000_000_000_000_000

    def time(self) -> float:
        return self.time_ns() / 1e9
