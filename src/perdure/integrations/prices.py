"""The price of an LLM call, by the tables of genai-prices; needs `perdure[prices]`."""

from genai_prices import Usage, calc_price

from perdure.base.errors import DefinitionError


def price_of(
    model: str, *, input_tokens: int = 0, output_tokens: int = 0, provider: str | None = None
) -> float:
    """Return the price of a call in USD, for `ctx.spend`.

    Args:
        model: The provider's name of the model.
        input_tokens: The number of input tokens, or an upper bound.
        output_tokens: The number of output tokens, or an upper bound.
        provider: The provider, if several have a model of this name.

    Raises:
        DefinitionError: The price is unknown; a guess would make a limit worthless.
    """
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens)
    try:
        return float(calc_price(usage, model, provider_id=provider).total_price)
    except LookupError as error:
        raise DefinitionError(f"the price of {model!r} is unknown: {error}") from None
