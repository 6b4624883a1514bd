"""GenServer: request types that say what their answer is."""

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from perdure.otp.server import Ask, GenServer
from perdure.process import Request
from perdure.testing import simulated


@dataclass(frozen=True, slots=True)
class Double(Ask[int]):
    number: int


class Spell(Struct, Ask[str], frozen=True):
    number: int


class Plain(Ask[None]):
    pass


class Calculator(GenServer):
    async def handle_call(self, request: Double | Spell | Plain, frm: Request[Any]) -> Any:
        match request:
            case Double(number):
                return 2 * number
            case Spell(number):
                return str(number)
            case Plain():
                return None


@simulated
async def test_requests_of_every_kind_of_class_can_name_their_answer() -> None:
    calculator = await Calculator.start_link()
    number: int = await GenServer.call(calculator, Double(21))
    text: str = await GenServer.call(calculator, Spell(number))
    assert (number, text) == (42, "42")
    assert (await calculator.call(Plain())) is None


def test_the_mark_costs_a_request_nothing() -> None:
    assert not hasattr(Double(1), "__dict__")
    assert not hasattr(Spell(1), "__dict__")
