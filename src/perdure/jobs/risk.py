"""How dangerous an action is, and whether it waits for a person; pure.

Every rule judges on its own, and the highest judgement counts. What the code says of a step is
the floor: nothing lowers it, and a plan, which a program may have written, has no say in it.
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

# Where the recipients of a mail stand in the arguments of a step.
_RECIPIENT_FIELDS: Final = frozenset({"to", "cc", "bcc", "recipients"})
_DEEPEST: Final = 8  # arguments are searched so deep


class RiskLevel(IntEnum):
    """How dangerous an action is; they can be compared."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, word: "RiskLevel | str") -> "RiskLevel":
        """Read a level as people write it.

        Raises:
            DefinitionError: There is no such level.
        """
        if isinstance(word, RiskLevel):
            return word
        try:
            return cls[word.upper()]
        except (KeyError, AttributeError):
            words = ", ".join(each.name.lower() for each in cls)
            raise DefinitionError(f"a risk is one of {words}, not {word!r}") from None


class RiskFacts(Struct, frozen=True, kw_only=True):
    """What is known of an action before it is done.

    Attributes:
        step: The name of the step.
        tags: The step's tags.
        cost: Estimated USD; None: nobody has said.
        estimated_duration: Estimated seconds; None: nobody has said.
        recipients: How many people get a message; None: it cannot be told.
        floor: The least risk, set in the code.
        arguments: The resolved arguments, as plain JSON values, for rules of the user.

    Raises:
        DefinitionError: A number is negative, infinite, or none.
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


# A rule gives a level and its reason; None if it has nothing to say.
Rule: TypeAlias = Callable[[RiskFacts], tuple[RiskLevel, str] | None]


def _large_mailing(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    if "external_email" not in facts.tags:
        return None
    if facts.recipients is None:
        return RiskLevel.HIGH, "it writes to nobody knows how many people"
    if facts.recipients > MOST_RECIPIENTS:
        return RiskLevel.HIGH, f"it writes to {facts.recipients} people"
    return None


def _dear(facts: RiskFacts) -> tuple[RiskLevel, str] | None:
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
RULES: Final[tuple[Rule, ...]] = (_large_mailing, _dear, _long)


class Classifier(Struct, frozen=True, kw_only=True):
    """The rules by which risk is judged.

    Attributes:
        tags: The level of each tag that is known; others are HIGH.
        rules: All rules; the highest judgement counts.
    """

    tags: Mapping[str, RiskLevel] = TAGS
    rules: tuple[Rule, ...] = RULES

    def extended(self, *rules: Rule, **tags: "RiskLevel | str") -> "Classifier":
        """Add rules and tags; the level of a tag that is known cannot be lowered.

        Raises:
            DefinitionError: A tag would get a lower level.
        """
        new = {tag: RiskLevel.of(level) for tag, level in tags.items()}
        for tag, level in new.items():
            if level < self.tags.get(tag, RiskLevel.LOW):
                raise DefinitionError(f"the tag {tag} is {self.tags[tag]}: it cannot be {level}")
        return Classifier(tags={**self.tags, **new}, rules=(*self.rules, *rules))

    def judge(self, facts: RiskFacts) -> Judgement:
        """Give the highest level that any rule finds."""
        found = [(facts.floor, "its code says so")]
        found += [self._tag(tag) for tag in sorted(facts.tags)]
        found += [judged for rule in self.rules if (judged := _ask(rule, facts)) is not None]
        level = max(each for each, _ in found)
        reasons = (why for each, why in found if why and each > RiskLevel.LOW)
        return Judgement(level, tuple(reasons))

    def _tag(self, tag: str) -> tuple[RiskLevel, str]:
        if tag in self.tags:
            return self.tags[tag], f"it is {tag.replace('_', ' ')}"
        return RiskLevel.HIGH, f"nobody has said how dangerous {tag!r} is"


def _ask(rule: Rule, facts: RiskFacts) -> tuple[RiskLevel, str] | None:
    """Ask a rule; one that cannot answer has found something that nobody thought of."""
    name = getattr(rule, "__name__", "a rule")
    try:
        judged = rule(facts)
        if judged is None:
            return None
        level, why = judged
        return RiskLevel(level), str(why)
    except Exception as error:  # noqa: BLE001  whatever a user's rule does
        return RiskLevel.HIGH, f"{name} could not judge it: {type(error).__name__}"


def check_number(value: object, what: str) -> Any:
    """Refuse what is no amount: NaN, infinity, a negative number, no number at all."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DefinitionError(f"{what} must be a number, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise DefinitionError(f"{what} must be from 0 on, not {value!r}")
    return value


def recipients_in(arguments: object) -> int | None:
    """Count the recipients that the arguments of a step name; None if they name none."""
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
    """Count addresses: a list has many, and so may a text."""
    if value is None:
        return 0
    if isinstance(value, str):
        return sum(bool(part.strip()) for part in value.replace(";", ",").split(","))
    if isinstance(value, list | tuple):
        return sum(_people(part) for part in cast("list[Any]", value))
    return 1
