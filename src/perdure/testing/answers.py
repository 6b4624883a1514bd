"""Answers of people in a test: who decides about which approval, how, and after which time."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from perdure.jobs.approval import Approval, Person, VoteVerdict

# "approve" or "reject", or a function that returns one of them, or None to leave it open.
Answer: TypeAlias = VoteVerdict | Callable[[Approval], VoteVerdict | None]


_APPROVER = frozenset({"approver"})


class AnswerRule(Struct, frozen=True, kw_only=True):
    """How people answer some of the questions."""

    answer: Answer
    by: tuple[Person | str, ...]
    title: str | None  # a part of the title
    step: str | None  # the step that waits
    after: float  # seconds after the question
    reason: str

    def verdict_for(self, approval: Approval) -> VoteVerdict | None:
        """Return the answer to a question; None if this rule does not answer it."""
        waiting = (approval.step, approval.step.partition("#")[0])
        if self.title is not None and self.title not in approval.title:
            return None
        if self.step is not None and self.step not in waiting:
            return None
        return self.answer(approval) if callable(self.answer) else self.answer

    def voters(self, approval: Approval, *, listed: bool) -> Sequence[Person | str]:
        """Return those who have not voted yet; `listed`: the app itself knows the people."""
        voted = {decision.person for decision in approval.decisions}
        people = [
            Person(id=each, tenant=approval.tenant, roles=_APPROVER)
            if isinstance(each, str) and not listed
            else each
            for each in self.by
        ]
        return [each for each in people if _id(each) not in voted]


def _id(person: Person | str) -> str:
    return person if isinstance(person, str) else person.id
