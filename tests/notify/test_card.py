import msgspec
import pytest
from msgspec.structs import replace

from perdure.base.visible import visible
from perdure.jobs.approval import Approval, Vote, decide
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.notify.message import alert_text, card_of
from tests.notify.desk import person
from tests.notify.question import ASKED, EDITED, NOTICE


def test_a_card_shows_the_action_its_hash_and_its_end() -> None:
    card = card_of(replace(ASKED, terms=replace(ASKED.terms, expires=7200.0)))
    assert ('"amount"', "120") in card.arguments
    assert ('"to"', '["kim", "lee"]') in card.arguments
    assert ("Risk", "MEDIUM") in card.fields
    assert ASKED.action.hash[:16] in card.footer
    assert "expires 2027-01-15 10:00 UTC" in card.footer
    assert card.outcome == ""


@pytest.mark.parametrize(
    "trick", ["a\u202eb", "a\u200bb", "a\nRisk: LOW", "a\x1b[31m", "a\ud800", "a\u2028b", "\ufeffa"]
)
def test_what_hides_in_a_text_is_spelled_out(trick: str) -> None:
    shown = visible(trick)
    assert "⟨U+" in shown
    assert not any(letter in shown for letter in "\u202e\u200b\n\x1b\ud800\u2028\ufeff")


def test_a_program_cannot_forge_a_field_by_a_line_break() -> None:
    card = card_of(replace(ASKED, title="pay\nRisk: LOW", shown=b'{"x":"1\\nRisk: LOW"}'))
    assert [name for name, _ in card.fields].count("Risk") == 1
    assert all("\n" not in text for pair in card.fields for text in (*pair, card.title))


def test_the_words_of_a_program_are_marked_as_such() -> None:
    assert "written by a program" in card_of(replace(ASKED, written_by_program=True)).note
    assert card_of(ASKED).note == ""


def test_who_has_passed_it_on_to_whom_is_shown() -> None:
    passed = replace(ASKED, delegates=(("ann", "bob"), ("bob", "cas")))
    shown = [value for name, value in card_of(passed).fields if name == "Passed on"]
    assert shown == ["ann → bob", "bob → cas"]


def test_what_is_cut_is_said_to_be_cut() -> None:
    long = b'{"to":[' + b",".join(b'"p%d"' % n for n in range(4000)) + b'],"x":"' + b"y" * 9999
    card = card_of(replace(ASKED, shown=long + b'"}'))
    fields = dict(card.arguments)
    assert "3990 more, 4000 in all" in fields['"to"']
    assert fields['"x"'].endswith("(9499 characters more)")
    assert card.in_full == "perdure approvals show approval-1 --full"
    many = b"{" + b",".join(b'"a%d":1' % n for n in range(50)) + b"}"
    assert card_of(replace(ASKED, shown=many)).arguments[-1] == ("…", "and … (30 arguments more)")


def test_what_is_cut_is_there_in_full() -> None:
    names = [f"a{number}" for number in range(50)]
    shown = {**dict.fromkeys(names, "y" * 9999), "to": [f"p{number}" for number in range(4000)]}
    asked = replace(ASKED, title="t" * 1000, shown=msgspec.json.encode(shown))
    card = card_of(asked, full=True)
    assert (card.title, len(card.arguments), card.in_full) == ("t" * 1000, 51, "")
    arguments = dict(card.arguments)
    assert arguments['"a49"'] == f'"{"y" * 9999}"'
    assert arguments['"to"'].endswith('"p3999"]')


@pytest.mark.parametrize("label", ["Risk", "Asked by", "Job", "Approved by", "Arguments", "…"])
def test_an_argument_cannot_pass_for_a_label_of_ours(label: str) -> None:
    asked = replace(ASKED, shown=msgspec.json.encode({label: "LOW", f'"{label}': 1}))
    card = card_of(asked)
    assert [name for name, _ in card.arguments] == [f'"{label}"', f'"\\"{label}"']
    assert card.fields == card_of(ASKED).fields


def test_a_text_of_a_list_cannot_pass_for_what_we_say_of_the_list() -> None:
    items = ["kim", "lee and 3 more", "x] … (9 more, 12 in all)"]
    card = card_of(replace(ASKED, shown=msgspec.json.encode({"to": items})))
    assert dict(card.arguments)['"to"'] == '["kim", "lee and 3 more", "x] … (9 more, 12 in all)"]'


def test_the_outcome_says_who_and_why() -> None:
    vote = Vote(
        person=person("ann"), verdict="reject", action_hash=ASKED.action.hash, reason="too much"
    )
    decided = decide(ASKED, vote, ASKED.created_at)
    assert isinstance(decided, Approval)
    assert card_of(decided).outcome == "Rejected · ann (reject) · too much"


@pytest.mark.parametrize("kind", [each for each in NoticeKind if each.startswith("alert.")])
def test_every_alert_says_what_is_wrong_and_where(kind: NoticeKind) -> None:
    alert: Notice = replace(NOTICE, kind=kind, data=b'{"text":"payment to bank"}')
    text = alert_text(alert)
    assert "job job-1" in text
    assert "payment to bank" in text
    assert not text.startswith("alert.")


def test_edited_arguments_are_shown_first_with_what_they_were_and_by_whom() -> None:
    card = card_of(EDITED)
    assert card.arguments == (
        ('"amount"', "900 (was: 120)"),
        ('"note"', '"x" (was: nothing)'),
        ('"to"', 'nothing (was: ["kim"])'),
    )
    assert ("Edited by", "bob") in card.fields
    assert EDITED.action.hash[:16] in card.footer
    many = {f"a{n}": n for n in range(50)}
    before = msgspec.json.encode({**many, "a49": 0})
    edits = (replace(EDITED.edits[0], before=before),)
    last = card_of(replace(EDITED, shown=msgspec.json.encode(many), edits=edits))
    assert last.arguments[0] == ('"a49"', "49 (was: 0)")


def test_an_argument_cannot_pretend_to_have_been_edited() -> None:
    forged = replace(ASKED, shown=b'{"amount":"900 (was: 120)"}')
    assert card_of(forged).arguments == (('"amount"', '"900 (was: 120)"'),)
