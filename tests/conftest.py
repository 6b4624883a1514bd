"""What all tests share."""

from hypothesis import settings

# A red run must be red again: everyday runs draw the same examples each time.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
# `scripts/test --hypothesis-profile=long` searches at random, and for long.
settings.register_profile("long", derandomize=False, deadline=None, max_examples=10_000)
settings.load_profile("ci")
