from random import Random

from perdure.jobs.outbox import LONGEST_ERROR, RETRY, Notice, NoticeKind, NoticeState

NOTICE = Notice(
    id="n-1", tenant="acme", kind=NoticeKind.ASKED, job_id="j", channel="slack", due_at=1000.0
)


def test_a_notice_that_could_not_be_delivered_is_tried_again_later_with_the_same_id() -> None:
    failed = NOTICE.failed("500", 1000.0, Random(1))
    assert failed.state is NoticeState.WAITING
    assert failed.id == NOTICE.id
    assert failed.due_at is not None
    assert failed.due_at > 1000.0
    assert failed.delivered("ts-1").state is NoticeState.DELIVERED


def test_a_notice_is_given_up_after_hours_and_not_before() -> None:
    notice, random = NOTICE, Random(1)
    while notice.state is NoticeState.WAITING:
        notice = notice.failed("no answer" * 1000, notice.due_at or 0.0, random)
    assert notice.tries == RETRY.attempts
    assert (notice.due_at or 0.0) - 1000.0 > 4 * 3600
    assert len(notice.error) == LONGEST_ERROR
