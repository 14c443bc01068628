"""Page Decode: a prompt, a drafter, and every step of the run."""

from __future__ import annotations

from typing import Any

import gradio as gr

from viz import drafter_choice, recorded, shell
from viz.pages.common import filled_from_address, prompt_box
from viz.pages.decode_actions import Actions
from viz.player import player
from viz.runs import Desk, Store
from viz.texts import text


def build(desk: Desk, store: Store, header: shell.Header, status: gr.HTML, app: gr.Blocks) -> None:
    """Lays the page out and binds its events."""
    with gr.Column(elem_id="decode-controls"):
        prompt = prompt_box("prompt")
        choice = drafter_choice.build()
        with gr.Row():
            run = gr.Button(text("decode.run"), variant="primary", elem_id="run", min_width=120)
            stop = gr.Button(text("decode.stop"), interactive=False, elem_id="stop", min_width=80)
        recordings = gr.Dropdown(
            recorded.choices(store),
            value=recorded.FIRST,
            label=text("decode.recorded"),
            elem_id="recorded",
        )
        with gr.Row():
            upload = gr.UploadButton(
                text("decode.open"), file_types=[".json"], size="sm", elem_id="open", min_width=120
            )
            check = gr.Button(text("decode.check"), size="sm", elem_id="check", min_width=120)
        findings = gr.HTML("", elem_id="findings", apply_default_css=False)
    with gr.Row(elem_classes="ds-pair"):
        key, live = recorded.keep(recorded.FIRST, store)
        first = {"run": key, "step": recorded.best_step(live)}
        main = player(store, True, "decode-player", controls="decode-controls", value=first)
        branch = player(store, False, "branch-player")
    shown = gr.State(None)  # the name of the run in the player

    actions = Actions(header, choice, desk, store)
    quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
    rows = list(choice.rows.values())
    asked = [*header.components, prompt, *choice.components]
    fields = [*asked, *rows]
    actions.prefill(fields, live.run)
    buttons = [run, stop, check]
    place = [status, main, shown, findings, branch]
    run.click(
        actions.run,
        asked,
        [status, main, *buttons, shown, findings, branch, recordings],
        **quiet,
    )
    stop.click(actions.stop, None, None, queue=False)
    choice.drafter.input(choice.shown, choice.drafter, rows, **quiet)
    recordings.input(actions.show_recorded, recordings, [*place, *fields], **quiet)
    upload.upload(actions.open_file, upload, [*place, recordings, *fields], **quiet)
    check.click(actions.check, shown, [status, *buttons, findings], **quiet)
    main.follow(actions.follow, None, [status, *buttons, branch], **quiet)
    said = filled_from_address([*fields, recordings], together=[*choice.components, *rows])
    app.load(actions.load, None, [status, main, *buttons, shown, said], **quiet)
