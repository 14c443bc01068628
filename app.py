"""Start here: `python app.py` opens Draftscope in the browser."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # a classroom's network may be closed

import gradio as gr

from viz import panel, shell, theme
from viz.pages import circuit, decode, noise, race
from viz.runs import Desk, Kept, Store
from viz.texts import text


def build() -> gr.Blocks:
    """The app: shared header, then one tab a page. No model is loaded here."""
    desk, store = Desk(), Store()
    panel.serve_assets()
    with gr.Blocks(title=text("app.title"), fill_width=True) as app:
        shell.title()
        header = shell.settings()
        status = shell.status_line()
        with gr.Tabs() as tabs:
            opened = {}
            for name in shell.TABS:
                opened[name] = gr.Tab(text(f"tab.{name}"), id=name)
                opened[name].select(None, None, None, js=shell.remember_tab(name))
        with opened["decode"]:
            decode.build(desk, store, header, status, app)
        with opened["race"]:
            race.build(desk, Kept(), header, status, app)
        with opened["noise"]:
            noise.build(desk, header, status, app)
        with opened["circuit"]:
            circuit.build(desk, header, status, app)
        app.load(shell.chosen_tab, None, tabs, show_progress="hidden")

        def leave(request: gr.Request) -> None:
            desk.stop_all(str(request.session_hash))

        app.unload(leave)
    return app


def main() -> None:
    """Serves the app until it is stopped."""
    parser = argparse.ArgumentParser(description=text("app.tagline"))
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets others on the network in")
    parser.add_argument("--port", type=int, help="7860, or the next that is free")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    chosen = parser.parse_args()
    build().launch(
        server_name=chosen.host,
        server_port=chosen.port,
        inbrowser=chosen.open,
        share=False,
        show_error=True,
        head=panel.head(),
        css=theme.stylesheet() + panel.stylesheets(),
        theme=gr.themes.Base(),
        footer_links=[],
    )


if __name__ == "__main__":
    main()
