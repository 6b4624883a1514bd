"""How dangerous an action is; pure.

Every rule judges on its own, and the highest judgement wins. The risk that the code of a step
declares is the floor: nothing lowers it, least of all a plan, which a program may have written.
What cannot be judged is HIGH.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from msgspec import Struct

from perdure.base.errors import DefinitionError

MOST_RECIPIENTS: Final = 100
MOST_USD: Final = 50.0
MOST_SECONDS: Final = 120 * 60.0

# Arguments of a step that name the recipients of a mail.
_RECIPIENT_FIELDS: Final = frozenset({"to", "cc", "bcc", "recipients"})
_DEEPEST: Final = 8  # levels of arguments that are searched


class RiskLevel(IntEnum):
    """How dangerous an action is; levels can be compared."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, word: "RiskLevel | str") -> "RiskLevel":
        """Return a level from its name in any case.

        Raises:
            DefinitionError: There is no such level.
        """
        if isinstance(word, RiskLevel):
            return word
        try:
            return cls[word.upper()]
        except (KeyError, AttributeError):
            words = ", ".join(each.name.lower() for each in cls)
            raise DefinitionError(f"risk must be one of {words}, not {word!r}") from None


class RiskFacts(Struct, frozen=True, kw_only=True):
    """What is known about an action before it is done.

    Attributes:
        step: The name of the step.
        tags: The step's tags.
        cost: Estimated USD; None: unknown.
        estimated_duration: Estimated seconds; None: unknown.
        recipients: How many people get a message; None: unknown.
        floor: The least risk, declared in the code.
        arguments: The resolved arguments as plain JSON values, for rules of the user.

    Raises:
        DefinitionError: A value is negative, infinite, or not a number.
    """

    step: str
    tags: frozenset[str] = frozenset()
    cost: float | None = None
    estimated_duration: float | None = None
    recipients: int | None = None
    floor: RiskLevel = RiskLevel.LOW
    arguments: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        for name in ("cost", "estimated_duration", "recipients"):
            check_number(getattr(self, name), f"`{name}` of {self.step}")


class Judgement(Struct, frozen=True):
    """A level, and why."""

    level: RiskLevel
    reasons: tuple[str, ...] = ()


# A rule returns a level and the reason, or None if it does not apply.
Rule: TypeAlias = Callable[[RiskFacts], tuple[RiskLevel, str] | None]


def _large_mailing(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    if "external_email" not in facts.tags:
        return None
    if facts.recipients is None:
        return RiskLevel.HIGH, "it writes to an unknown number of people"
    if facts.recipients > MOST_RECIPIENTS:
        return RiskLevel.HIGH, f"it writes to {facts.recipients} people"
    return None


def _expensive(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    if facts.cost is None or facts.cost <= MOST_USD:
        return None
    return RiskLevel.HIGH, f"it may cost {facts.cost:g} USD"


def _long(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    if facts.estimated_duration is None or facts.estimated_duration <= MOST_SECONDS:
        return None
    return RiskLevel.MEDIUM, f"it may take {facts.estimated_duration / 60:g} minutes"


TAGS: Final[Mapping[str, RiskLevel]] = MappingProxyType(
    {
        "financial": RiskLevel.HIGH,
        "data_destructive": RiskLevel.CRITICAL,
        "external_email": RiskLevel.LOW,  # judged by the number of its recipients
    }
)
RULES: Final[tuple[Rule, ...]] = (_large_mailing, _expensive, _long)


class Classifier(Struct, frozen=True, kw_only=True):
    """The rules that judge risk.

    Attributes:
        tags: The level of each known tag; an unknown tag is HIGH.
        rules: All rules; the highest judgement wins.
    """

    tags: Mapping[str, RiskLevel] = TAGS
    rules: tuple[Rule, ...] = RULES

    def extended(self, *rules: Rule, **tags: "RiskLevel | str") -> "Classifier":
        """Return a classifier with more rules and tags; the level of a known tag cannot be lowered.

        Raises:
            DefinitionError: A known tag would get a lower level.
        """
        new = {tag: RiskLevel.of(level) for tag, level in tags.items()}
        for tag, level in new.items():
            if level < self.tags.get(tag, RiskLevel.LOW):
                raise DefinitionError(
                    f"tag {tag!r} is {self.tags[tag]} and cannot be lowered to {level}"
                )
        return Classifier(tags={**self.tags, **new}, rules=(*self.rules, *rules))

    def judge(self, facts: RiskFacts) -> Judgement:
        """Return the highest level that any rule finds, with the reasons."""
        found = [(facts.floor, f"the code marks it as {facts.floor} risk")]
        found += [self._tag(tag) for tag in sorted(facts.tags)]
        found += [judged for rule in self.rules if (judged := _ask(rule, facts)) is not None]
        level = max(each for each, _ in found)
        reasons = (why for each, why in found if why and each > RiskLevel.LOW)
        return Judgement(level, tuple(reasons))

    def _tag(self, tag: str) -> tuple[RiskLevel, str]:
        if tag in self.tags:
            return self.tags[tag], f"it is {tag.replace('_', ' ')}"
        return RiskLevel.HIGH, f"the risk of the tag {tag!r} is unknown"


def _ask(rule: Rule, facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    """Apply a rule; if it fails, the case is one that nobody thought of, and is HIGH."""
    name = getattr(rule, "__name__", "a rule")
    try:
        judged = rule(facts)
        if judged is None:
            return None
        level, why = judged
        return RiskLevel(level), str(why)
    except Exception as error:  # noqa: BLE001  whatever a user's rule does
        return RiskLevel.HIGH, f"{name} failed: {type(error).__name__}"


def check_number(value: object, what: str) -> Any:
    """Return a finite number that is not negative, or None; raise DefinitionError for others."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DefinitionError(f"{what} must be a number, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise DefinitionError(f"{what} must be 0 or more, not {value!r}")
    return value


def recipients_in(arguments: object) -> int | None:
    """Count the recipients in the arguments of a step; None if there is no such argument."""
    counts = list(_recipient_counts(arguments, _DEEPEST))
    return sum(counts) if counts else None


def _recipient_counts(value: object, deep: int) -> Iterable[int]:
    if deep == 0:
        return
    if isinstance(value, Mapping):
        for name, part in cast("Mapping[Any, Any]", value).items():
            if str(name).lower() in _RECIPIENT_FIELDS:
                yield _people(part)
            else:
                yield from _recipient_counts(part, deep - 1)
    elif isinstance(value, list | tuple):
        for part in cast("list[Any]", value):
            yield from _recipient_counts(part, deep - 1)


def _people(value: object) -> int:
    """Count addresses in a list, or in a text that separates them by commas or semicolons."""
    if value is None:
        return 0
    if isinstance(value, str):
        return sum(bool(part.strip()) for part in value.replace(";", ",").split(","))
    if isinstance(value, list | tuple):
        return sum(_people(part) for part in cast("list[Any]", value))
    return 1
