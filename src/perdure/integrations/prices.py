"""What the use of an LLM costs, by the tables of genai-prices; needs `perdure[prices]`."""

from genai_prices import Usage, calc_price

from perdure.base.errors import DefinitionError


def price_of(
    model: str, *, input_tokens: int = 0, output_tokens: int = 0, provider: str | None = None
) -> float:
    """Give the price of a call in USD, for `ctx.spend`.

    Args:
        model: The name of the model, as the provider spells it.
        input_tokens: How many tokens go in, or may go in.
        output_tokens: How many come out, or may come out at most.
        provider: Whose model it is, where the name alone does not tell.

    Raises:
        DefinitionError: Nobody knows the price; a guess would make a limit worthless.
    """
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    try:
        return float(calc_price(usage, model, provider_id=provider).total_price)
    except LookupError as error:
        raise DefinitionError(f"the price of {model!r} is not known: {error}") from None
