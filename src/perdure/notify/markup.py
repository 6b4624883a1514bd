"""The words of a card as HTML, for mails and pages; what hides is visible already."""

from collections.abc import Iterable
from html import escape

from perdure.notify.card import Card


def in_html(text: str) -> str:
    """Escape a text, and let no letter of it that is read from the right move its neighbours."""
    return f"<bdi>{escape(text)}</bdi>"


def in_tables(card: Card) -> str:
    """Lay out our own words, and the arguments apart from them."""
    return (
        f"<table cellpadding=4>{_rows(card.fields)}</table>"
        f"<h3>Arguments</h3><table cellpadding=4 class=arguments>{_rows(card.arguments)}</table>"
    )


def _rows(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><th align=left valign=top>{in_html(name)}</th><td>{in_html(value)}</td></tr>"
        for name, value in pairs
    )
