import pytest

from perdure.base.errors import DefinitionError
from perdure.integrations.prices import price_of
from perdure.jobs.budget import Amount, ModelUsage


def test_a_call_has_a_price_that_grows_with_its_tokens() -> None:
    small = price_of("gpt-4o", input_tokens=1000, provider="openai")
    large = price_of("gpt-4o", input_tokens=1000, output_tokens=500, provider="openai")
    assert 0 < small < large
    assert Amount.of(usd=large).micro_usd > 0


def test_tokens_from_the_cache_of_the_provider_are_cheaper() -> None:
    usual = price_of("claude-sonnet-4-5", input_tokens=10_000)
    cached = price_of("claude-sonnet-4-5", input_tokens=10_000, cache_read_tokens=9_000)
    assert 0 < cached < usual / 3


def test_a_model_without_a_price_is_not_free() -> None:
    with pytest.raises(DefinitionError, match="is unknown"):
        price_of("no such model", input_tokens=1)


def test_the_name_of_a_framework_for_a_provider_does_not_hide_the_price() -> None:
    by_model = price_of(ModelUsage(model="gpt-4o", input_tokens=1000))
    assert price_of(ModelUsage(model="gpt-4o", provider="a gateway", input_tokens=1000)) == by_model
    named = ModelUsage(model="openai/gpt-4o", provider="openai", input_tokens=1000)
    assert price_of(named) == by_model
