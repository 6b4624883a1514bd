import socket
from collections.abc import Callable

import httpx
import pytest

from perdure.base.errors import Permanent, Refused
from perdure.jobs.effect import EffectState, is_refusal, state_after

REQUEST = httpx.Request("POST", "http://127.0.0.1/")


def answered(status: int) -> httpx.HTTPStatusError:
    response = httpx.Response(status, request=REQUEST)
    return httpx.HTTPStatusError(f"{status}", request=REQUEST, response=response)


@pytest.mark.parametrize("kind", [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout])
def test_a_request_that_never_left_has_had_no_effect(kind: Callable[[str], Exception]) -> None:
    assert state_after(kind("no connection")) is EffectState.FAILED


@pytest.mark.parametrize(
    "kind",
    [httpx.ReadTimeout, httpx.WriteTimeout, httpx.ReadError, httpx.RemoteProtocolError],
)
def test_after_the_first_byte_nobody_knows(kind: Callable[[str], Exception]) -> None:
    assert state_after(kind("gone")) is EffectState.IN_DOUBT


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 410, 413, 422, 451])
def test_a_refusal_by_the_receiver_is_proof(status: int) -> None:
    assert state_after(answered(status)) is EffectState.FAILED


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 501, 502, 503, 504, 302])
def test_other_answers_prove_nothing(status: int) -> None:
    assert state_after(answered(status)) is EffectState.IN_DOUBT


@pytest.mark.parametrize(
    "error", [Refused("no"), ConnectionRefusedError(), socket.gaierror("no such host")]
)
def test_these_errors_come_before_anything_could_happen(error: Exception) -> None:
    assert state_after(error) is EffectState.FAILED


@pytest.mark.parametrize(
    "error", [KeyError("id"), TimeoutError(), ConnectionResetError(), Permanent("x"), OSError()]
)
def test_any_other_error_leaves_it_in_doubt(error: Exception) -> None:
    assert state_after(error) is EffectState.IN_DOUBT


def test_a_group_proves_something_only_if_all_of_it_does() -> None:
    proof = ExceptionGroup("two", [Refused("a"), answered(422)])
    assert state_after(proof) is EffectState.FAILED
    mixed = ExceptionGroup("two", [Refused("a"), answered(500)])
    assert state_after(mixed) is EffectState.IN_DOUBT


def test_a_class_of_another_library_with_the_same_name_proves_nothing() -> None:
    class ConnectError(Exception): ...

    assert state_after(ConnectError()) is EffectState.IN_DOUBT


@pytest.mark.parametrize(
    "error", [Refused("no"), answered(422), ConnectionRefusedError(), httpx.ConnectError("x")]
)
def test_no_error_of_a_repeated_call_proves_anything_about_the_first(error: Exception) -> None:
    assert state_after(error, repeated=True) is EffectState.IN_DOUBT


def test_a_refusal_is_the_word_of_the_receiver() -> None:
    assert is_refusal(Refused("no"))
    assert is_refusal(ExceptionGroup("two", [answered(422), ConnectionRefusedError()]))
    assert not is_refusal(ConnectionRefusedError())
    assert not is_refusal(answered(429))
    assert not is_refusal(ExceptionGroup("two", [answered(422), TimeoutError()]))
