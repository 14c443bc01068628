"""Page Decode: a prompt, a drafter, and every step of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from mtp.drafters.options import settle_options
from mtp.errors import DraftscopeError, TraceError
from mtp.records.settings import Settings, settings_of
from mtp.records.trace import MAX_BYTES, Branch, Trace
from viz import check, drafter_choice, shell
from viz.drafter_choice import DrafterChoice
from viz.figures.tokens import visible
from viz.pages.common import owner_of, watch
from viz.panel import ASSETS
from viz.player import Player
from viz.runs import Desk, LiveRun, Store, decode_into
from viz.texts import text

TRACES = ASSETS / "traces"
NO_BRANCH = {"run": None}  # hides the player of a followed branch
FIRST = "first"  # the recorded run that is drawn at the first view


@dataclass(frozen=True)
class Parts:
    """The page's components that its events read and write."""

    header: shell.Header
    status: gr.HTML
    prompt: gr.Textbox
    choice: DrafterChoice
    run: gr.Button
    stop: gr.Button
    recorded: gr.Dropdown
    upload: gr.UploadButton
    check: gr.Button
    findings: gr.HTML
    player: Player
    branch: Player
    shown: gr.State
    """The name of the run in the player."""

    def asked(self) -> list[Any]:
        """What a run is made from, in the order `_settings` takes it."""
        return [*self.header.components, self.prompt, *self.choice.components]


def build(desk: Desk, store: Store, header: shell.Header, status: gr.HTML) -> Parts:
    """Lays the page out and binds its events."""
    with gr.Column(elem_id="decode-controls"):
        prompt = gr.Textbox(
            label=text("decode.prompt"),
            placeholder=text("decode.prompt.placeholder"),
            lines=3,
            max_lines=6,
            elem_id="prompt",
        )
        choice = drafter_choice.build()
        with gr.Row():
            run = gr.Button(text("decode.run"), variant="primary", elem_id="run", min_width=120)
            stop = gr.Button(text("decode.stop"), interactive=False, elem_id="stop", min_width=80)
        recorded = gr.Dropdown(
            recorded_runs(), value=None, label=text("decode.recorded"), elem_id="recorded"
        )
        with gr.Row():
            upload = gr.UploadButton(
                text("decode.open"), file_types=[".json"], size="sm", elem_id="open", min_width=120
            )
            check_button = gr.Button(
                text("decode.check"), size="sm", elem_id="check", min_width=120
            )
        findings = gr.HTML("", elem_id="findings", apply_default_css=False)
    with gr.Row(elem_classes="ds-pair"):
        player = Player(store, True, controls="decode-controls", elem_id="decode-player")
        branch = Player(store, False, elem_id="branch-player")
    parts = Parts(
        header, status, prompt, choice, run, stop, recorded, upload,
        check_button, findings, player, branch, gr.State(None),
    )  # fmt: skip
    _bind(parts, desk, store)
    return parts


def _bind(parts: Parts, desk: Desk, store: Store) -> None:
    """Connects the page's controls to what they do."""
    actions = Actions(parts, desk, store)
    quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
    watched = [parts.status, parts.player, parts.run, parts.stop, parts.check, parts.shown]
    parts.run.click(
        actions.run,
        parts.asked(),
        [*watched, parts.findings, parts.branch, parts.recorded],
        **quiet,
    )
    parts.stop.click(actions.stop, None, None, queue=False)
    choice = parts.choice
    choice.drafter.change(choice.shown, choice.drafter, list(choice.rows.values()), **quiet)
    shown = [parts.status, parts.player, parts.shown, parts.findings, parts.branch]
    parts.recorded.input(actions.show_recorded, parts.recorded, shown, **quiet)
    parts.upload.upload(actions.open_file, parts.upload, [*shown, parts.recorded], **quiet)
    working = [parts.status, parts.run, parts.stop, parts.check]
    parts.check.click(actions.check, parts.shown, [*working, parts.findings], **quiet)
    parts.player.follow(actions.follow, parts.shown, [*working, parts.branch], **quiet)


def on_load(parts: Parts, desk: Desk, store: Store) -> tuple[Any, list[Any], list[Any]]:
    """What the app calls when a browser opens the page: handler, inputs, outputs.

    The address decides: a recorded run, a run to make again, or the first recorded run.
    """
    actions = Actions(parts, desk, store)
    outputs = [
        *parts.asked(),
        *parts.choice.rows.values(),
        *[parts.status, parts.player, parts.run, parts.stop, parts.check, parts.shown],
        parts.recorded,
    ]
    return actions.load, [], outputs


class Actions:
    """What the page's controls do."""

    def __init__(self, parts: Parts, desk: Desk, store: Store) -> None:
        self.parts = parts
        self.desk = desk
        self.store = store

    async def run(self, request: gr.Request, *asked: Any) -> AsyncIterator[Any]:
        """Decodes what the controls say; the player follows."""
        try:
            model, dtype, settings = self._settings(asked)
        except DraftscopeError as error:
            yield self._failed(str(error), 9)
            return
        cleared = ["", NO_BRANCH, None]
        async for update in self._decode(model, dtype, settings, owner_of(request)):
            yield [*update, *cleared]
            cleared = [gr.skip()] * 3

    async def _decode(
        self,
        model: str,
        dtype: str | None,
        settings: Settings,
        owner: str,
        place: Mapping[str, Any] | None = None,
        label: str | None = None,
    ) -> AsyncIterator[list[Any]]:
        """Updates of status, player, run, stop, check, shown while a run is decoded."""
        live = LiveRun(label or text("run.label", drafter=settings.drafter, seed=settings.seed))
        key = self.store.add(live)
        job = decode_into(live, self.desk, owner, model, dtype, settings)
        seen = -1
        async for words in watch(self.desk, job):
            player: Any = gr.skip()
            if live.run is not None and len(live.steps) != seen:
                seen = len(live.steps)
                player = {"run": key, "tick": seen, **(place or {})}
            yield [words, player, *_busy(True), key]
        failure = job.failure()
        if failure is not None and live.trace is None and live.run is not None:
            live.state = "stopped"
        last: Any = {"run": key, "tick": "end", **(place or {})} if live.steps else gr.skip()
        yield [_ended(live, failure), last, *_busy(False), key if live.steps else gr.skip()]

    def stop(self, request: gr.Request) -> None:
        """Ends this tab's jobs within a step."""
        self.desk.stop_all(owner_of(request))

    def show_recorded(self, name: str | None) -> list[Any]:
        """Puts a recorded run into the player."""
        if not name:
            return [gr.skip()] * 5
        try:
            key = self._keep_recorded(name)
        except TraceError as error:
            return self._failed(str(error), 5)
        live = self.store.get(key)
        label = live.label if live is not None else name
        words = shell.status(text("status.shown", label=label))
        value = {"run": key, "step": best_step(live) if live is not None else None}
        return [words, value, key, "", NO_BRANCH]

    def _keep_recorded(self, name: str) -> str:
        key = f"recorded-{name}"
        if self.store.get(key) is None:
            trace = read_recorded(name)
            live = LiveRun(_label(trace), "recorded", name, trace.run, list(trace.steps), trace)
            self.store.add(live, key)
        return key

    def open_file(self, path: str | None) -> list[Any]:
        """Opens a saved trace; needs no model."""
        if path is None:
            return [gr.skip()] * 6
        try:
            from pathlib import Path

            file = Path(path)
            if file.stat().st_size > MAX_BYTES:
                raise TraceError(text("error.upload.large", most=MAX_BYTES // 2**20))
            trace = Trace.from_json(file.read_bytes())
        except (OSError, UnicodeDecodeError):
            return self._failed(text("error.upload"), 6)
        except TraceError as error:
            return self._failed(str(error), 6)
        live = LiveRun(_label(trace), "opened", None, trace.run, list(trace.steps), trace)
        key = self.store.add(live)
        words = shell.status(text("status.opened", label=file.name))
        return [words, {"run": key}, key, "", NO_BRANCH, None]

    async def check(self, shown: str | None, request: gr.Request) -> AsyncIterator[list[Any]]:
        """Runs plain sampling with the same seed and says whether the texts agree."""
        live = self.store.get(shown)
        if live is None or live.run is None or not live.steps:
            yield self._failed(text("check.none"), 5)
            return
        if live.run.verification == "rejection":
            words = f'<p class="ds-finding ds-plain">{text("check.rejection")}</p>'
            yield [gr.skip()] * 4 + [words]
            return
        found = check.Findings()
        job = check.check_into(found, live, self.desk, owner_of(request))
        async for words in watch(self.desk, job):
            yield [words, *_busy(True), check.report(found, live.run.temperature)]
        failure = job.failure()
        words = shell.status(text("status.stopped.check" if job.stopped else "status.checked"))
        if failure is not None:
            words = shell.status(failure, "failed")
        yield [words, *_busy(False), check.report(found, live.run.temperature)]

    async def follow(
        self, shown: str | None, event: gr.EventData, request: gr.Request
    ) -> AsyncIterator[list[Any]]:
        """Decodes on from a rejected node as a second run, beside the first."""
        data = event._data if isinstance(event._data, dict) else {}
        live = self.store.get(data.get("run"))
        branch = branch_settings(live, data.get("step"), data.get("node"))
        if live is None or live.run is None or branch is None:
            yield self._failed(text("branch.none"), 5)
            return
        tree = live.steps[data["step"]].tree
        token = visible(tree.texts[data["node"]])
        label = text("branch.label", step=data["step"] + 1, token=token)
        model, dtype = live.run.model, live.run.dtype
        async for update in self._decode(model, dtype, branch, owner_of(request), label=label):
            words, value, run, stop, check_button, _ = update
            yield [words, run, stop, check_button, value]

    async def load(self, request: gr.Request) -> AsyncIterator[list[Any]]:
        """Fills the page from its address."""
        query = dict(request.query_params)
        values = shell.from_query(query)
        drafter = drafter_choice.known(query.get("drafter"))
        place = {"step": _step(query.get("step")), "moment": query.get("moment")}
        filled = [values.get(name, gr.skip()) for name in vars(self.parts.header)]
        filled.append(query.get("prompt", gr.skip()))
        filled += self.parts.choice.from_link(drafter, query)
        filled += self.parts.choice.shown(drafter)
        keep = [gr.skip()] * len(filled)
        asks = bool(query.get("prompt"))
        name = query.get("recorded", FIRST)
        if not asks:
            status, player, shown, *_ = self.show_recorded(name if self._has(name) else FIRST)
            if isinstance(player, dict) and place["step"]:
                player = {**player, **place}
            tail = [
                status,
                player,
                *_busy(False),
                shown,
                name if "recorded" in query else gr.skip(),
            ]
            yield [*filled, *tail]
            return
        yield [*filled, *[gr.skip()] * 7]
        try:
            model, dtype, settings = self._from_address(query, values, drafter)
        except DraftscopeError as error:
            yield [*keep, shell.status(str(error), "failed"), *[gr.skip()] * 6]
            return
        async for update in self._decode(model, dtype, settings, owner_of(request), place):
            yield [*keep, *update, gr.skip()]

    def _has(self, name: str) -> bool:
        return any(name == key for _, key in recorded_runs())

    def _from_address(
        self, query: Mapping[str, str], values: Mapping[str, Any], drafter: str
    ) -> tuple[str, str | None, Settings]:
        options = drafter_choice.options_in(drafter, query)
        dtype = values.get("dtype", "auto")
        chosen = {k: v for k, v in values.items() if k not in ("model", "dtype")}
        settings = Settings(
            prompt=query["prompt"],
            drafter=drafter,
            drafter_options=settle_options(drafter, options),
            **chosen,
        )
        return values.get("model", "smollm2"), None if dtype == "auto" else dtype, settings

    def _settings(self, asked: tuple[Any, ...]) -> tuple[str, str | None, Settings]:
        """The model, its precision and the settings that the controls say."""
        head = len(vars(self.parts.header))
        prompt, *chosen = asked[head:]
        header = self.parts.header
        model, dtype, base = shell.settings_from(header, asked[:head], str(prompt or ""))
        drafter, options = self.parts.choice.given(chosen)
        options = settle_options(drafter, options)
        return model, dtype, replace(base, drafter=drafter, drafter_options=options)

    def _failed(self, words: str, outputs: int) -> list[Any]:
        """A sentence in the status line; everything else stays as it is."""
        return [shell.status(words, "failed"), *[gr.skip()] * (outputs - 1)]


def _busy(busy: bool) -> list[Any]:
    """Run, stop and check buttons while the model works, or not."""
    return [gr.update(interactive=on) for on in (not busy, busy, not busy)]


def _ended(live: LiveRun, failure: str | None) -> str:
    tokens = sum(len(step.committed) for step in live.steps)
    if failure is not None:
        return shell.status(failure, "failed")
    if live.trace is None:
        return shell.status(text("status.stopped.early"))
    if live.state == "stopped":
        return shell.status(text("status.stopped", tokens=tokens))
    return shell.status(text("status.done", tokens=tokens, steps=len(live.steps)))


def branch_settings(live: LiveRun | None, step: object, node: object) -> Settings | None:
    """The settings of a run that follows a rejected node; None where there is no such node."""
    if live is None or live.run is None or not isinstance(step, int) or not isinstance(node, int):
        return None
    if not 0 <= step < len(live.steps):
        return None
    tree = live.steps[step].tree
    if not 0 <= node < len(tree.token_ids) or tree.status[node] != "rejected":
        return None
    path = [node]
    while tree.parents[path[0]] >= 0:
        path.insert(0, tree.parents[path[0]])
    base = settings_of(live.run)
    written = [token.id for one in live.steps[:step] for token in one.committed]
    forced = (*base.forced_ids, *written, *(tree.token_ids[one] for one in path))
    left = base.max_new_tokens - len(written) - len(path)
    return Settings(
        **{
            **{name: getattr(base, name) for name in base.__dataclass_fields__},
            "max_new_tokens": max(1, left),
            "forced_ids": forced,
            "branch": Branch(step=step, node=node, forced=len(forced)),
        }
    )


def best_step(live: LiveRun) -> int:
    """The step, counted from 1, that shows most: many tokens stood, and some fell."""

    def score(index: int) -> tuple[int, int]:
        step = live.steps[index]
        return len(step.committed), sum(status == "rejected" for status in step.tree.status)

    return 1 + max(range(len(live.steps)), key=score, default=0)


def recorded_runs() -> list[tuple[str, str]]:
    """(label, name) of the recorded runs that ship with Draftscope, the first view's first."""
    names = sorted((path.stem for path in TRACES.glob("*.json")), key=lambda n: (n != FIRST, n))
    return [(_label(read_recorded(name)), name) for name in names]


def read_recorded(name: str) -> Trace:
    """A recorded run by name. Raises TraceError for a name that is none."""
    path = TRACES / f"{name}.json"
    if path.parent != TRACES or not path.is_file():
        raise TraceError(text("error.recorded", name=name[:40]))
    return Trace.from_json(path.read_bytes())


def _label(trace: Trace) -> str:
    prompt = " ".join(trace.run.prompt.split())
    short = prompt if len(prompt) <= 56 else prompt[:55] + "…"
    return f"{trace.run.drafter} on {trace.run.model}: {short}"


def _step(words: str | None) -> int | None:
    return (
        int(words) if words is not None and words.isdecimal() and 0 < int(words) < 10**6 else None
    )
