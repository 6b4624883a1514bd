"""The price of an LLM call, by the tables of genai-prices; needs `perdure[prices]`."""

from functools import partial

from perdure.base.errors import DefinitionError
from perdure.base.extra import extra
from perdure.jobs.budget import ModelUsage

with extra("prices", "the price of a model"):
    from genai_prices import Usage, calc_price


def price_of(
    model: str | ModelUsage,
    *,
    input_tokens: int = 0,
    output_tokens: int = 0,
    cache_read_tokens: int = 0,
    cache_write_tokens: int = 0,
    provider: str | None = None,
) -> float:
    """Return the price of a call in USD, for `ctx.spend`.

    Args:
        model: The name of the model, as its provider spells it; or a usage, and nothing else.
        input_tokens: The number of input tokens, or an upper bound; those of the cache included.
        output_tokens: The number of output tokens, or an upper bound.
        cache_read_tokens: How many of the input tokens came from the provider's cache, which makes
            them far cheaper.
        cache_write_tokens: How many of them were written to it.
        provider: The provider, if several have a model of this name.

    Raises:
        DefinitionError: The price is unknown; a guess would make a limit worthless.
    """
    if isinstance(model, ModelUsage):
        return _price_of_usage(model)
    usage = Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=cache_read_tokens,
        cache_write_tokens=cache_write_tokens,
    )
    try:
        return float(calc_price(usage, model, provider_id=provider).total_price)
    except LookupError as error:
        raise DefinitionError(f"the price of {model!r} is unknown: {error}") from None


def _price_of_usage(used: ModelUsage) -> float:
    price = partial(
        price_of,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
    )
    try:
        return price(used.model, provider=used.provider or None)
    except DefinitionError:
        if not used.provider:
            raise
    # Frameworks have names of their own for providers, and a gateway is not who sets the price.
    return price(used.model.rpartition("/")[2])
