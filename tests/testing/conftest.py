"""Every test of this folder that takes `url` runs on both databases."""

from tests.engine.conftest import url

__all__ = ["url"]
