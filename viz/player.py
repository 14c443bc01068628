"""The player: a run's text, tree, counters and timeline, stepped through in the browser."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import gradio as gr
from pydantic import TypeAdapter

from mtp.records.trace import Run, Step, count_by_depth, step_to_plain
from viz import panel
from viz.figures import by_depth, draft_tree, timeline
from viz.runs import LiveRun, Store
from viz.texts import part, table, text

FIRST_CHUNK, CHUNK = 40, 400  # steps a request: the first tree is drawn before the rest has come

_RUN = TypeAdapter(Run)


def player(
    store: Store,
    owns_address: bool,
    elem_id: str,
    controls: str | None = None,
    value: dict[str, Any] | None = None,
) -> gr.HTML:
    """A component that shows the run named in its value, {"run", "step", "moment"}.

    Its script asks for the run's steps as they come and then needs the server no more. The page's
    component with the id `controls` is moved into the player's left column. One player of a page
    keeps the address bar; its rejected nodes can be followed (event `follow`).
    """
    return gr.HTML(
        value=value,
        html_template=panel.markup("player"),
        js_on_load=panel.scripts(
            "page", "figure", "player_text", "player_figures", "player_node", "player",
            texts=part("player.", "count.", "node.", "table.", "timeline.", "depth."),
            tree_template=panel.plain_figure(draft_tree.template()),
            timeline_template=panel.plain_figure(timeline.template(table())),
            owns_address=owns_address,
            controls=controls,
        ),
        server_functions=[_steps_of(store), _trace_of(store)],
        apply_default_css=False,
        elem_id=elem_id,
    )  # fmt: skip


def _steps_of(store: Store) -> Any:
    def player_steps(asked: list[Any]) -> dict[str, Any]:
        """Steps of a run, asked for as [its name, how many the page has]."""
        run_id, have = asked if isinstance(asked, list) and len(asked) == 2 else (None, None)
        live = store.get(run_id)
        if live is None or not isinstance(have, int) or have < 0:
            return {"error": text("error.gone")}
        steps = live.steps[have : have + (CHUNK if have else FIRST_CHUNK)]
        last = have + len(steps) >= len(live.steps)
        return {
            "state": live.state,
            "label": live.label,
            "total": len(live.steps),
            "steps": [viewer_step(step) for step in steps],
            "run": _RUN.dump_python(live.run, mode="json") if have == 0 and live.run else None,
            "link": link_of(live) if have == 0 and live.run else None,
            "depth": _depth_figure(live) if last and live.state != "live" else None,
        }

    return player_steps


def _trace_of(store: Store) -> Any:
    def player_trace(run_id: str) -> dict[str, str]:
        """The whole run as a trace file."""
        live = store.get(run_id)
        if live is None:
            return {"error": text("error.gone")}
        if live.trace is None:
            return {"error": text("error.running")}
        run = live.trace.run
        name = f"draftscope-{run.drafter}-seed{run.seed}.json"
        return {"name": name, "trace": live.trace.to_json()}

    return player_trace


def viewer_step(step: Step) -> dict[str, Any]:
    """A step of the trace with the arrays that draw its tree."""
    return {**step_to_plain(step), "tree_arrays": draft_tree.arrays(step, table())}


def _depth_figure(live: LiveRun) -> dict[str, Any]:
    return panel.plain_figure(by_depth.figure(count_by_depth(tuple(live.steps)), table()))


def link_of(live: LiveRun) -> str | None:
    """The query that makes this run again; None where it would be too long or cannot be made."""
    run = live.run
    if run is None or run.branch is not None:
        return None
    if live.recorded is not None:
        return urlencode({"tab": "decode", "recorded": live.recorded})
    query = urlencode({"tab": "decode", **query_of(run)})
    return query if len(query) <= panel.LINK_LENGTH else None


def query_of(run: Run) -> dict[str, str]:
    """A run's settings as an address holds them."""
    return {
        "model": run.model,
        "mode": run.mode,
        "dtype": run.dtype,
        "temperature": str(run.temperature),
        "top_k": str(run.top_k),
        "top_p": str(run.top_p),
        "verification": run.verification,
        "seed": str(run.seed),
        "new": str(run.max_new_tokens),
        "drafter": run.drafter,
        **{f"{run.drafter}.{name}": str(value) for name, value in run.drafter_options.items()},
        "prompt": run.prompt,
    }
