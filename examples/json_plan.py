"""A plan: a job that is data, written by a program or a language model.

It is checked as a whole before anything runs, and every mistake is reported.
"""

import os
from pathlib import Path

from msgspec import Struct

from perdure import App, Plan
from perdure.errors import PlanError

app = App(os.environ.get("PERDURE_URL", "sqlite:///json_plan.db"))

PLAN = Path(__file__).with_suffix(".json")

WRONG = """
{"name": "wrong", "calls": [
  {"step": "prices", "arguments": {"city": 7}},
  {"step": "cheapest", "arguments": {"offers": {"$ref": "price.offers"}}},
  {"step": "send_it", "arguments": {}}
]}
"""


class Offer(Struct):
    shop: str
    price: float


class Offers(Struct):
    city: str
    offers: list[Offer]


@app.step
async def prices(city: str) -> Offers:
    return Offers(city, [Offer("Corner", 3.2), Offer("Market", 2.5), Offer("Station", 4.1)])


@app.step
async def cheapest(offers: list[Offer]) -> Offer:
    return min(offers, key=lambda offer: offer.price)


@app.step
async def report(city: str, offer: Offer) -> str:
    return f"In {city} it is cheapest at {offer.shop}: {offer.price:.2f}"


def main() -> None:
    print(app.run_sync(Plan.from_json(PLAN.read_text("utf-8"))))
    try:
        Plan.from_json(WRONG).check(app)
    except PlanError as error:
        print(f"\nAnother plan is refused before anything runs: {error}")


if __name__ == "__main__":
    main()
