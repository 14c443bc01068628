"""How a token is written in a figure: escaped, spaces and line breaks visible, short enough."""

from __future__ import annotations

import re

SPACE, BREAK, TAB = "\u2423", "\u21b5", "\u21e5"
_MARK = re.compile(r"<\|(\w{2,})\|>")
LABEL_WIDTH = 8  # characters that fit between two columns of the tree


def visible(text: str) -> str:
    """The token with spaces, line breaks and tabs as signs; an empty one as ∅."""
    marked = text.replace(" ", SPACE).replace("\n", BREAK).replace("\r", BREAK).replace("\t", TAB)
    return "".join(char if char.isprintable() else "\ufffd" for char in marked) or "\u2205"


def escaped(text: str) -> str:
    """Plotly reads labels as HTML: a token must never be taken for a tag or an entity."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def label(text: str, width: int = LABEL_WIDTH) -> str:
    """The token as a node's label: a leading space dropped, shortened with a middle dot. A mark
    such as <|assistant|> keeps its name and its beginning.
    """
    mark = _MARK.fullmatch(text)
    if mark is not None:
        shown = mark[1] if len(mark[1]) <= width else mark[1][: width - 1] + "\u2026"
        return escaped(shown)
    shown = visible(text[1:] if len(text) > 1 and text[0] == " " and text[1] != " " else text)
    if len(shown) > width:
        head = width // 2
        shown = shown[:head] + "\u00b7" + shown[-(width - 1 - head) :]
    return escaped(shown)


def full(text: str) -> str:
    """The whole token for a hover, escaped, spaces visible."""
    return escaped(visible(text))
