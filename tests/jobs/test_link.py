from perdure.jobs.approval import (
    MOST_WRONG,
    Action,
    Approval,
    ApprovalTerms,
    check_code,
    code_hash,
    dead_link,
    link_id,
    new_link,
    use_of,
    used_link,
)

APPROVAL = Approval(
    id="a-1",
    tenant="acme",
    job_id="j",
    step="pay#1",
    action=Action(tenant="acme", job_id="j", step="pay#1"),
    title="pay",
    created_at=1000.0,
    terms=ApprovalTerms(expires=600.0),
)
LINK = new_link(APPROVAL, "ann", "the token", "1234 5678", 5000.0)


def test_neither_the_token_nor_the_code_is_kept() -> None:
    assert "token" not in repr(LINK)
    assert "5678" not in repr(LINK)
    assert LINK.id == link_id("the token")


def test_a_code_cannot_be_found_out_from_what_is_kept_without_the_token() -> None:
    assert code_hash("the token", "1234 5678") != code_hash("another token", "1234 5678")


def test_a_code_may_be_typed_with_or_without_its_gap() -> None:
    for code in ("1234 5678", "12345678", " 1234  5678 "):
        assert check_code(LINK, use_of("the token", code), 1001.0).refusal is None


def test_a_link_lives_no_longer_than_its_approval() -> None:
    assert LINK.expires_at == 1600.0
    assert dead_link(LINK, 1599.0) is None
    over = dead_link(LINK, 1600.0)
    assert over is not None
    assert over.code == "expired"


def test_wrong_codes_are_counted_until_the_link_is_dead() -> None:
    link, wrong = LINK, use_of("the token", "0")
    for number in range(1, MOST_WRONG + 1):
        judged = check_code(link, wrong, 1001.0)
        assert judged.refusal is not None
        assert (judged.refusal.code == "wrong code") == (number < MOST_WRONG)
        link = judged.link
        assert link.wrong == number
    # A dead link answers a right code as it answers a wrong one.
    assert check_code(link, use_of("the token", "12345678"), 1001.0) == check_code(
        link, wrong, 1001.0
    )


def test_a_used_link_is_dead() -> None:
    gone = dead_link(used_link(LINK, 1001.0), 1002.0)
    assert gone is not None
    assert gone.code == "decided"
