"""What the pages share: the prompt's box, following a job, and whose tab it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from viz import shell
from viz.runs import Desk, Job
from viz.texts import text

TICK = 0.1  # seconds between looks at a job


def owner_of(request: gr.Request) -> str:
    """The browser tab a request came from."""
    return str(request.session_hash)


def prompt_box(elem_id: str) -> gr.Textbox:
    """Where a page's prompt is written."""
    return gr.Textbox(
        label=text("decode.prompt"),
        placeholder=text("decode.prompt.placeholder"),
        lines=3,
        max_lines=6,
        elem_id=elem_id,
    )


async def watch(desk: Desk, job: Job) -> AsyncIterator[str]:
    """The status line's HTML until the job is done. Leaving early, as a closed tab does, stops
    the job.
    """
    try:
        last = ""
        while not job.done:
            words = shell.status(desk.describe(job), "busy", job.fraction)
            if words != last:
                last = words
                yield words
            await asyncio.sleep(TICK)
    finally:
        if not job.done:
            job.stop()


def busy(working: bool) -> list[Any]:
    """Updates of a page's start and stop buttons while the model works for it, or not."""
    return [gr.update(interactive=not working), gr.update(interactive=working)]
