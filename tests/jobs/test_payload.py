"""Large payloads: what stands in their place, and how they are put together again."""

from perdure.jobs.payload import (
    CHUNK,
    digested,
    excerpt,
    is_same,
    is_stand_in,
    joined,
    split,
    stand_in_of,
)

LARGE = b'{"history":["' + b"turn after turn, " * 20_000 + b'"]}'


def test_arguments_are_kept_as_digest_size_and_preview() -> None:
    kept = stand_in_of(digested(LARGE))
    assert kept is not None
    assert kept.shown() == {
        "digest": kept.digest,
        "bytes": len(LARGE),
        "preview": LARGE[:200].decode() + "…",
    }
    assert not kept.chunks


def test_a_payload_is_made_of_its_chunks_again() -> None:
    packed, chunks = split(LARGE)
    kept = stand_in_of(packed)
    assert kept is not None
    assert len(kept.chunks) == -(-len(LARGE) // CHUNK)
    stored = {chunk.digest: chunk.data for chunk in chunks}
    assert sum(map(len, stored.values())) < len(LARGE) / 10
    assert joined(kept, stored) == LARGE


def test_a_payload_with_a_missing_or_damaged_chunk_is_not_returned() -> None:
    packed, chunks = split(LARGE)
    kept = stand_in_of(packed)
    assert kept is not None
    stored = {chunk.digest: chunk.data for chunk in chunks}
    last = kept.chunks[-1]
    assert joined(kept, {name: data for name, data in stored.items() if name != last}) is None
    assert joined(kept, stored | {last: stored[last][:-1]}) is None
    assert joined(kept, stored | {last: stored[kept.chunks[0]]}) is None


def test_a_history_that_has_grown_shares_all_chunks_but_the_last() -> None:
    _, chunks = split(LARGE)
    packed, new = split(LARGE[:-2] + b',"one more"]}', {chunk.digest for chunk in chunks})
    assert len(new) == 1
    kept = stand_in_of(packed)
    assert kept is not None
    assert new[0].digest == kept.chunks[-1]


def test_payloads_are_compared_in_whatever_form_they_are_kept() -> None:
    other = LARGE.replace(b"turn after", b"turn round")
    forms = (LARGE, digested(LARGE), split(LARGE)[0])
    assert all(is_same(one, another) for one in forms for another in forms)
    assert not any(is_same(one, other) or is_same(one, digested(other)) for one in forms)


def test_no_json_of_a_value_is_taken_for_a_stand_in() -> None:
    assert not any(map(is_stand_in, (b"", b"null", b'{"digest":"x"}', b'" "', LARGE)))
    assert is_stand_in(digested(LARGE))


def test_a_preview_has_no_secrets() -> None:
    kept = stand_in_of(digested(b'{"password":"hunter2","rest":"' + b"x" * 50_000 + b'"}'))
    assert kept is not None
    assert "hunter2" not in kept.preview


def test_an_excerpt_says_how_large_the_rest_is() -> None:
    assert excerpt(b"[1]") == "[1]"
    assert excerpt(b"x" * 300) == "x" * 200 + "…"
    assert "bytes, digest" in excerpt(digested(LARGE))
