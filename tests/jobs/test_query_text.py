"""The query language of the list of jobs."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from perdure.base.errors import QueryError
from perdure.jobs.model import JobQuery, TimeRange
from perdure.jobs.query_text import (
    GROUPS,
    LONGEST,
    MOST_TERMS,
    QueryWords,
    complete,
    parse,
    spell,
)
from perdure.jobs.state import ENDED, JobState

KNOWN = QueryWords(
    names=("load", "migrate", "mail all"),
    queues=("default", "finance"),
    users=("kim",),
    tenants=("acme",),
    labels={"team": ("data", "web"), "my env": ("x",)},
)


def test_an_empty_text_means_all_jobs() -> None:
    assert parse("") == parse("  \n ") == JobQuery()
    assert spell(JobQuery()) == ""


def test_every_field_is_read() -> None:
    text = (
        "state:failed name:migrate label.team:data label.env=test queue:finance key:june "
        "tenant:acme user:kim parent:18e8 waits:approval june"
    )
    assert parse(text) == JobQuery(
        states=(JobState.FAILED,),
        name="migrate",
        labels={"team": "data", "env": "test"},
        queue="finance",
        key="june",
        tenant="acme",
        user="kim",
        parent="18e8",
        waits="approval",
        words=("june",),
    )


def test_states_are_named_one_by_one_or_as_groups() -> None:
    assert parse("state:FAILED,paused").states == (JobState.PAUSED, JobState.FAILED)
    assert parse("state:failed state:paused") == parse("state:paused,failed")
    for name, states in GROUPS.items():
        assert set(parse(f"state:{name}").states or ()) == states
    assert set(parse("state:done,attention").states or ()) == {*ENDED, JobState.NEEDS_ATTENTION}


def test_stuck_jobs_are_asked_for_by_a_word_that_stands_alone() -> None:
    assert parse("state:stuck") == JobQuery(stuck=True)
    assert parse("state:Stuck state:running") == JobQuery(stuck=True, states=(JobState.RUNNING,))
    assert spell(JobQuery(stuck=True)) == "state:stuck"
    for text in ("state:stuck,failed", "-state:stuck"):
        with pytest.raises(QueryError, match="stands alone"):
            parse(text)


def test_an_excluded_state_leaves_the_others() -> None:
    assert set(parse("-state:completed").states or ()) == {*JobState} - {JobState.COMPLETED}
    assert parse("state:failing -state:failed").states == (JobState.NEEDS_ATTENTION,)
    assert parse("state:failed -state:done").states == ()


def test_names_queues_users_and_labels_are_excluded() -> None:
    query = parse("-name:a -name:b -queue:mail -user:kim -label.team:web")
    assert query.not_names == ("a", "b")
    assert (query.not_queues, query.not_users) == (("mail",), ("kim",))
    assert query.not_labels == {"team": "web"}


def test_a_star_at_the_end_means_what_begins_so() -> None:
    assert parse("name:mig* key:june*") == JobQuery(name_prefix="mig", key_prefix="june")
    assert parse('name:"mig*"') == JobQuery(name="mig*")
    assert parse('name:"a b"*') == JobQuery(name_prefix="a b")


def test_quotation_marks_hold_a_value_together() -> None:
    assert parse('key:"june 1" "two words"') == JobQuery(key="june 1", words=("two words",))
    assert parse(r'key:"a \"b\" \\ c"').key == r'a "b" \ c'
    assert parse('label."my team":"a:b"').labels == {"my team": "a:b"}
    assert parse('"-x" "a:b"').words == ("-x", "a:b")
    assert parse('user:""').user == ""


def test_a_parent_may_be_excluded_by_none() -> None:
    assert parse("parent:none") == JobQuery(roots=True)
    assert parse('parent:"none"') == JobQuery(parent="none")


def test_ages_stay_relative() -> None:
    assert parse("created:<2h").created == TimeRange(younger=7200)
    assert parse("created:2h") == parse("created:<2h")
    assert parse("created:>1d12h ended:<90s") == JobQuery(
        created=TimeRange(older=129_600), ended=TimeRange(younger=90)
    )


def test_times_are_utc_and_name_the_whole_day_minute_or_second() -> None:
    day = 1_794_873_600  # 2026-11-17T00:00Z
    whole = TimeRange(after=day, before=day + 86_400)
    assert parse("created:2026-11-17").created == whole
    assert parse("created:>=2026-11-17 created:<=2026-11-17").created == whole
    assert parse("created:>2026-11-17").created == TimeRange(after=day + 86_400)
    assert parse("created:<2026-11-17T00:01").created == TimeRange(before=day + 60)
    assert parse("ended:>2026-11-17T00:01").ended == TimeRange(after=day + 120)
    assert parse("ended:2026-11-17T01:00:00+01:00").ended == TimeRange(after=day, before=day + 1)
    assert parse("ended:>=2026-11-16T19:00-05:00").ended == TimeRange(after=day)


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("name:load stat:failed", 10, "did you mean state?"),
        ("x zzz:1", 2, "there are state, name"),
        ("state:faild", 6, "did you mean failed?"),
        ("state:failed,nope", 13, "there is no state 'nope'"),
        ("name:", 5, "needs a value"),
        ("name:a name:b", 7, "given twice"),
        ("label.:x", 0, "needs a name"),
        ("label.a:x label.a:y", 10, "given twice"),
        ('key:"june', 4, "not closed"),
        ("-june", 1, "cannot be excluded"),
        ("-key:june", 1, "can be excluded"),
        ("-name:j*", 1, "can be excluded"),
        ("name:*", 5, "matches everything"),
        ("waits:godot", 6, "there is no kind of wait"),
        ("created:soon", 8, "give an age"),
        ("created:>=2h", 8, "give an age"),
        ("created:2026-13-01", 8, "give an age"),
        ("created:<1h created:<2h", 12, "given twice"),
        ('x ""', 2, "must not be empty"),
        ("x " * (MOST_TERMS + 1), 2 * MOST_TERMS, "terms"),
        ("x" * (LONGEST + 1), LONGEST, "characters"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, at: int, why: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert why in caught.value.why
    assert caught.value.position == at


texts = st.text(max_size=20)
ages = st.integers(0, 10**8) | st.integers(0, 10**6).map(lambda number: number / 1000)
times = st.integers(0, 4 * 10**9)
ranges = st.none() | st.builds(
    TimeRange,
    after=st.none() | times,
    before=st.none() | times,
    younger=st.none() | ages,
    older=st.none() | ages,
).filter(lambda found: found != TimeRange())
optional = st.none() | texts
filled = st.text(min_size=1, max_size=20)
queries = st.builds(
    JobQuery,
    tenant=optional,
    states=st.none()
    | st.sets(st.sampled_from(JobState)).map(
        lambda found: tuple(each for each in JobState if each in found)
    ),
    name=optional,
    name_prefix=st.none() | filled,
    queue=optional,
    user=optional,
    parent=optional,
    roots=st.booleans(),
    key=optional,
    key_prefix=st.none() | filled,
    labels=st.dictionaries(filled, texts, max_size=3),
    waits=st.none() | st.sampled_from(["approval", "timer"]),
    created=ranges,
    ended=ranges,
    words=st.lists(filled, max_size=3).map(tuple),
    not_names=st.lists(texts, max_size=3).map(tuple),
    not_users=st.lists(texts, max_size=2).map(tuple),
    not_labels=st.dictionaries(filled, texts, max_size=2),
)


@given(queries)
@example(JobQuery(parent="none"))
@example(JobQuery(states=()))
def test_what_is_spelled_is_read_as_the_same_query(query: JobQuery) -> None:
    assert parse(spell(query)) == query


@given(st.text(alphabet='staename:="-*,.<> \\2h', max_size=30))
def test_any_text_is_a_query_or_an_error_within_it(text: str) -> None:
    try:
        query = parse(text)
    except QueryError as error:
        place = error.position
    else:
        place = 0
        assert parse(spell(query)) == query
    assert 0 <= place <= len(text)


@given(st.text(alphabet='state:lbe.m="-, ', max_size=20), st.integers(0, 25))
def test_completion_takes_any_text_and_place(text: str, at: int) -> None:
    for each in complete(text, min(at, len(text)), KNOWN):
        assert 0 <= each.start <= each.end <= len(text)


def offered(text: str) -> list[str]:
    return [each.text for each in complete(text, len(text), KNOWN)]


def test_fields_are_suggested_then_their_values() -> None:
    assert "state:" in offered("")
    assert offered("name:x que") == ["queue:"]
    assert offered("state:fai") == ["state:failing", "state:failed"]
    assert offered("state:failed,pau") == ["state:failed,paused"]
    assert offered("-state:comple") == ["-state:completed"]
    assert offered("name:m") == ["name:migrate", 'name:"mail all"']
    assert offered('name:"mail') == ['name:"mail all"']
    assert offered("queue:f") == ["queue:finance"]
    assert offered("label.t") == ["label.team:"]
    assert offered("label.team=w") == ["label.team=web"]
    assert offered("created:<1") == ["created:<15m", "created:<1h", "created:<1d"]
    assert offered("key:x") == []
    assert "key:" not in offered("-k")


def test_a_suggestion_says_what_it_replaces() -> None:
    (found,) = complete("name:x queue:fi user:kim", 15, KNOWN)
    assert (found.start, found.end, found.text) == (7, 15, "queue:finance")
