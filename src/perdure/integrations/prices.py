"""The price of an LLM call, by the tables of genai-prices; needs `perdure[prices]`."""

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
        model: The provider's name of the model; or all that a call has used, then nothing else.
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
        return price_of(
            model.model,
            input_tokens=model.input_tokens,
            output_tokens=model.output_tokens,
            cache_read_tokens=model.cache_read_tokens,
            cache_write_tokens=model.cache_write_tokens,
            provider=model.provider or None,
        )
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
