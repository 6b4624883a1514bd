"""Splits text into words."""

import re
import unicodedata

# Latin letters, digits and Korean syllables make words; everything else separates them.
BETWEEN_WORDS = re.compile(r"[^a-z0-9가-힣\s]")


def tokenize(text: str) -> list[str]:
    """Return the words of a text, in lower case and in order."""
    # Some systems write a Korean syllable as separate letters: join them first.
    joined = unicodedata.normalize("NFC", text).lower()
    return BETWEEN_WORDS.sub(" ", joined).split()
