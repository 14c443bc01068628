"""What the pages share: where a context is written, buttons, files, following a job, whose tab."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from mtp.errors import DraftscopeError, TraceError
from viz import panel, shell
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


def context_boxes(page: str) -> tuple[gr.Textbox, gr.Textbox]:
    """Where a context is written on a page: a prompt, and the beginning of its answer."""
    prompt = prompt_box(f"{page}-prompt")
    answer = gr.Textbox(
        label=text(f"{page}.answer"),
        placeholder=text(f"{page}.answer.placeholder"),
        lines=1,
        max_lines=3,
        elem_id=f"{page}-answer",
    )
    return prompt, answer


def start_and_stop(page: str) -> list[gr.Button]:
    """The buttons that set the model to work for a page, and that end it."""
    with gr.Row():
        start = gr.Button(text(f"{page}.start"), variant="primary", elem_id=f"{page}-start")
        stop = gr.Button(text("decode.stop"), interactive=False, elem_id=f"{page}-stop")
    return [start, stop]


def failed(words: str, outputs: int) -> list[Any]:
    """A sentence in the status line, which is the first output; all else stays as it is."""
    return [shell.status(words, "failed"), *[gr.skip()] * (outputs - 1)]


def or_sentence(outputs: int, made: Callable[[], list[Any]]) -> list[Any]:
    """What is made for so many outputs, or `failed` where that raises an error of ours."""
    try:
        return made()
    except DraftscopeError as error:
        return failed(str(error), outputs)


def filled_from_address(fields: Sequence[Any], together: Collection[Any] = ()) -> gr.Textbox:
    """A hidden component: `filling(values)` as its value fills the fields, in the browser and at
    once, but for those that someone has changed since the page was opened. Of those in `together`
    all are filled or none.
    """
    said = gr.Textbox(visible="hidden")
    names = [field.elem_id or f"component-{field._id}" for field in fields]
    indices = [index for index, field in enumerate(fields) if field in together]
    script = panel.scripts("fill", fields=names, together=indices)
    said.change(None, said, fields, js=f"(said) => {{ {script} }}", show_progress="hidden")
    return said


def filling(values: Sequence[Any]) -> str:
    """What the component of `filled_from_address` takes: the fields' values or updates."""
    return json.dumps(list(values))


def uploaded(path: str, most: int, large: str) -> bytes:
    """What an uploaded file holds. Raises TraceError for one of more than `most` bytes, in the
    words named `large`, and for one that cannot be read.
    """
    try:
        if Path(path).stat().st_size > most:
            raise TraceError(text(large, most=most // 2**20))
        return Path(path).read_bytes()
    except OSError as error:
        raise TraceError(text("error.upload")) from error


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
