import msgspec
import pytest
from msgspec.structs import replace

from perdure.base.visible import visible
from perdure.jobs.approval import Approval, Vote, decide
from perdure.jobs.outbox import Notice, NoticeKind
from perdure.notify.message import alert_text, approval_message
from tests.support.approvals import ASKED, EDITED, NOTICE, person


def test_a_card_shows_the_action_its_hash_and_its_end() -> None:
    message = approval_message(replace(ASKED, terms=replace(ASKED.terms, expires=7200.0)))
    assert ('"amount"', "120") in message.arguments
    assert ('"to"', '["kim", "lee"]') in message.arguments
    assert ("Risk", "MEDIUM") in message.fields
    assert ASKED.action.hash[:16] in message.footer
    assert "expires 2027-01-15 10:00 UTC" in message.footer
    assert message.outcome == ""


@pytest.mark.parametrize(
    "trick", ["a\u202eb", "a\u200bb", "a\nRisk: LOW", "a\x1b[31m", "a\ud800", "a\u2028b", "\ufeffa"]
)
def test_what_hides_in_a_text_is_spelled_out(trick: str) -> None:
    shown = visible(trick)
    assert "⟨U+" in shown
    assert not any(letter in shown for letter in "\u202e\u200b\n\x1b\ud800\u2028\ufeff")


def test_a_program_cannot_forge_a_field_by_a_line_break() -> None:
    message = approval_message(
        replace(ASKED, title="pay\nRisk: LOW", shown=b'{"x":"1\\nRisk: LOW"}')
    )
    assert [name for name, _ in message.fields].count("Risk") == 1
    assert all("\n" not in text for pair in message.fields for text in (*pair, message.title))


def test_the_words_of_a_program_are_marked_as_such() -> None:
    assert "written by a program" in approval_message(replace(ASKED, written_by_program=True)).note
    assert approval_message(ASKED).note == ""


def test_who_has_passed_it_on_to_whom_is_shown() -> None:
    passed = replace(ASKED, delegates=(("ann", "bob"), ("bob", "cas")))
    shown = [value for name, value in approval_message(passed).fields if name == "Delegated"]
    assert shown == ["ann → bob", "bob → cas"]


def test_what_is_cut_is_said_to_be_cut() -> None:
    long = b'{"to":[' + b",".join(b'"p%d"' % n for n in range(4000)) + b'],"x":"' + b"y" * 9999
    message = approval_message(replace(ASKED, shown=long + b'"}'))
    fields = dict(message.arguments)
    assert "3990 more, 4000 in all" in fields['"to"']
    assert fields['"x"'].endswith("(9499 characters more)")
    assert message.in_full == "perdure approvals show approval-1 --full"
    many = b"{" + b",".join(b'"a%d":1' % n for n in range(50)) + b"}"
    assert approval_message(replace(ASKED, shown=many)).arguments[-1] == (
        "…",
        "and … (30 arguments more)",
    )


def test_what_is_cut_is_there_in_full() -> None:
    names = [f"a{number}" for number in range(50)]
    shown = {**dict.fromkeys(names, "y" * 9999), "to": [f"p{number}" for number in range(4000)]}
    asked = replace(ASKED, title="t" * 1000, shown=msgspec.json.encode(shown))
    message = approval_message(asked, full=True)
    assert (message.title, len(message.arguments), message.in_full) == ("t" * 1000, 51, "")
    arguments = dict(message.arguments)
    assert arguments['"a49"'] == f'"{"y" * 9999}"'
    assert arguments['"to"'].endswith('"p3999"]')


@pytest.mark.parametrize("label", ["Risk", "Requested by", "Job", "Approved by", "Arguments", "…"])
def test_an_argument_cannot_pass_for_a_label_of_ours(label: str) -> None:
    asked = replace(ASKED, shown=msgspec.json.encode({label: "LOW", f'"{label}': 1}))
    message = approval_message(asked)
    assert [name for name, _ in message.arguments] == [f'"{label}"', f'"\\"{label}"']
    assert message.fields == approval_message(ASKED).fields


def test_a_text_of_a_list_cannot_pass_for_what_we_say_of_the_list() -> None:
    items = ["kim", "lee and 3 more", "x] … (9 more, 12 in all)"]
    message = approval_message(replace(ASKED, shown=msgspec.json.encode({"to": items})))
    assert (
        dict(message.arguments)['"to"'] == '["kim", "lee and 3 more", "x] … (9 more, 12 in all)"]'
    )


def test_the_outcome_says_who_and_why() -> None:
    vote = Vote(
        person=person("ann"), verdict="reject", action_hash=ASKED.action.hash, reason="too much"
    )
    decided = decide(ASKED, vote, ASKED.created_at)
    assert isinstance(decided, Approval)
    assert approval_message(decided).outcome == "Rejected · ann (reject) · too much"


@pytest.mark.parametrize("kind", [each for each in NoticeKind if each.startswith("alert.")])
def test_every_alert_says_what_is_wrong_and_where(kind: NoticeKind) -> None:
    alert: Notice = replace(NOTICE, kind=kind, data=b'{"text":"payment to bank"}')
    text = alert_text(alert)
    assert "job job-1" in text
    assert "payment to bank" in text
    assert not text.startswith("alert.")


def test_edited_arguments_are_shown_first_with_what_they_were_and_by_whom() -> None:
    message = approval_message(EDITED)
    assert message.arguments == (
        ('"amount"', "900 (was: 120)"),
        ('"note"', '"x" (was: nothing)'),
        ('"to"', 'nothing (was: ["kim"])'),
    )
    assert ("Edited by", "bob") in message.fields
    assert EDITED.action.hash[:16] in message.footer
    many = {f"a{n}": n for n in range(50)}
    before = msgspec.json.encode({**many, "a49": 0})
    edits = (replace(EDITED.edits[0], before=before),)
    now = msgspec.json.encode(many)
    action = replace(EDITED.action, input=now)
    last = approval_message(replace(EDITED, action=action, shown=now, edits=edits))
    assert last.arguments[0] == ('"a49"', "49 (was: 0)")


def test_an_edit_of_a_secret_is_seen_although_both_values_are_removed() -> None:
    edits = (replace(EDITED.edits[0], before=b'{"password":"a","pin":"1"}'),)
    now = b'{"password":"b","pin":"1"}'
    action = replace(EDITED.action, input=now)
    message = approval_message(replace(EDITED, action=action, shown=now, edits=edits))
    assert message.arguments == (
        ('"password"', '"[removed]" (was: "[removed]")'),
        ('"pin"', '"[removed]"'),
    )


def test_an_argument_cannot_pretend_to_have_been_edited() -> None:
    forged = replace(ASKED, shown=b'{"amount":"900 (was: 120)"}')
    assert approval_message(forged).arguments == (('"amount"', '"900 (was: 120)"'),)


def test_what_a_step_does_is_shown_first() -> None:
    described = replace(ASKED, description="Pays an invoice.\nRisk: LOW")
    first, *others = approval_message(described).fields
    assert first == ("What it does", visible("Pays an invoice.\nRisk: LOW"))
    assert approval_message(ASKED).fields == tuple(others)
    long = replace(ASKED, description="x" * 600)
    assert approval_message(long).in_full
    assert ("What it does", "x" * 600) in approval_message(long, full=True).fields
