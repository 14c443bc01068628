"""Colours, type and the Plotly template: the one home of how Draftscope looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Roles (Okabe–Ito, told apart by colour-blind eyes; shape or border says the same again).
ACCEPTED = "#009E73"
REJECTED = "#D55E00"
UNREACHED = "#8A8F98"
VERIFIER = "#0072B2"
DRAFTERS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#D55E00", "#F0E442", "#555555"),
)
ROLES = {
    "accepted": ACCEPTED,
    "rejected": REJECTED,
    "unreached": UNREACHED,
    "verifier": VERIFIER,
}
# The verifier's blue is too dark to read as text on a dark page; this is the same hue, lighter.
TEXT_ROLES = {
    "light": {
        "accepted": "#007656",
        "rejected": "#A84A00",
        "unreached": "#63686F",
        "verifier": "#005F95",
    },
    "dark": {
        "accepted": "#3CC79F",
        "rejected": "#F08A43",
        "unreached": "#9BA0A8",
        "verifier": "#63B3E4",
    },
}

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Noto Sans CJK KR', sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Noto Sans CJK KR', monospace"
SIZES = {"small": 12, "body": 14, "large": 17, "title": 22}  # px

PAGE = {
    "light": {
        "paper": "#FFFFFF", "sheet": "#F6F7F8", "ink": "#1B1E23", "dim": "#5C626B",
        "line": "#D9DCE0", "accent": "#3B4252", "accent-ink": "#FFFFFF",
    },
    "dark": {
        "paper": "#14161A", "sheet": "#1C1F25", "ink": "#E8EAED", "dim": "#A2A8B1",
        "line": "#363B44", "accent": "#D8DEE9", "accent-ink": "#14161A",
    },
}  # fmt: skip

# Plotly writes colours into the SVG; the stylesheet overrides its text with the page's ink, so
# these stand only where no stylesheet reaches: downloads and other viewers.
NEUTRAL_TEXT = "#5C626B"
NEUTRAL_GRID = "rgba(138, 143, 152, 0.22)"


def stylesheet() -> str:
    """The CSS variables of both modes; everything in assets/css reads these."""
    fixed = {
        **{f"role-{name}": colour for name, colour in ROLES.items()},
        "sans": SANS,
        "mono": MONO,
        **{f"size-{name}": f"{size}px" for name, size in SIZES.items()},
    }
    light = {**PAGE["light"], **{f"text-{k}": v for k, v in TEXT_ROLES["light"].items()}}
    dark = {**PAGE["dark"], **{f"text-{k}": v for k, v in TEXT_ROLES["dark"].items()}}
    return f":root {{{_lines({**fixed, **light})}}}\n.dark {{{_lines(dark)}}}\n"


def _lines(variables: dict[str, str]) -> str:
    return "".join(f"--ds-{name}: {value}; " for name, value in variables.items())


def layout(height: int, **more: Any) -> dict[str, Any]:
    """The layout all figures start from: transparent, quiet grid, even margins, fixed height."""
    axis = {
        "gridcolor": NEUTRAL_GRID,
        "zeroline": False,
        "linecolor": NEUTRAL_GRID,
        "ticks": "",
        "title": {"standoff": 8, "font": {"size": SIZES["small"]}},
        "automargin": True,
    }
    base: dict[str, Any] = {
        "height": height,
        "margin": {"l": 48, "r": 16, "t": 16, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": SANS, "size": SIZES["small"], "color": NEUTRAL_TEXT},
        "colorway": list(DRAFTERS),
        "xaxis": dict(axis),
        "yaxis": dict(axis),
        "hoverlabel": {"font": {"family": MONO, "size": SIZES["small"]}, "align": "left"},
        "showlegend": False,
        "dragmode": "pan",
    }
    return _merged(base, more)


def _merged(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `more` put in, dictionaries within dictionaries merged."""
    merged = dict(base)
    for key, value in more.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged
