"""The panel's script of Plotly against the Python package whose figures it draws."""

import re
from pathlib import Path

import plotly

from viz.panel import PLOTLY_SCRIPT

WHOLE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def _release(script: Path) -> str:
    found = re.search(r"plotly\.js.* v([\d.]+)", script.read_text(encoding="utf-8")[:200])
    assert found
    return found[1]


def test_the_script_is_of_the_release_that_the_package_brings() -> None:
    assert _release(PLOTLY_SCRIPT) == _release(WHOLE)
