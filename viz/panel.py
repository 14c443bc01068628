"""Plotly in the page: its script, and the scripts that share it."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import gradio as gr

from viz.texts import text

LINK_LENGTH = 6000  # characters; longer addresses are cut by browsers and chat programs
ASSETS = Path(__file__).resolve().parent.parent / "assets"
# Plotly's own build for plane figures, of the release that the Python package brings whole: a third
# of its size, so that the first figure is drawn sooner.
PLOTLY_SCRIPT = ASSETS / "vendor" / "plotly-cartesian.min.js"


def serve_assets() -> None:
    """Lets the browser fetch Plotly's script from here: no outside request, works offline."""
    gr.set_static_paths([PLOTLY_SCRIPT])


def head() -> str:
    """For the page's head: Plotly's script, which loads beside Gradio's own, and one that notes
    from the start which fields are edited.
    """
    return (
        f'<script defer src="/gradio_api/file={PLOTLY_SCRIPT}"></script>'
        f"<script>{_script('touched')}</script>"
    )


def scripts(*names: str, **given: Any) -> str:
    """Scripts of assets/js, one after another, as one function body; they read what is `given` as
    GIVEN. A component's own properties would be lost: an update that comes before its tab has been
    opened takes their place.
    """
    parts = map(_script, names)
    return "\n".join([f"const GIVEN = {json.dumps(given)};", *parts])


def _script(name: str) -> str:
    return (ASSETS / "js" / f"{name}.js").read_text(encoding="utf-8")


def markup(name: str) -> str:
    """A frame of assets/html with its [[words]] put in; scripts find its parts by name."""
    frame = (ASSETS / "html" / f"{name}.html").read_text(encoding="utf-8")
    return re.sub(r"\[\[([\w.]+)\]\]", lambda found: html.escape(text(found[1])), frame)


def stylesheets() -> str:
    """All of assets/css in the order of their names."""
    return "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ASSETS / "css").glob("*.css"))
    )


def plain_figure(figure: Any) -> dict[str, Any]:
    """A figure as JSON-ready data and layout, without Plotly's default template."""
    figure.update_layout(template="none")
    plain = figure.to_plotly_json()
    return {"data": list(plain["data"]), "layout": {**plain["layout"], "template": None}}
