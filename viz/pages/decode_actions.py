"""What the controls of page Decode do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from mtp.drafters.options import settle_options
from mtp.errors import DraftscopeError, TraceError
from mtp.records.settings import Settings, settings_of
from mtp.records.trace import MAX_BYTES, Branch, Run, Trace
from viz import check, drafter_choice, recorded, shell
from viz.drafter_choice import DrafterChoice
from viz.figures.tokens import visible
from viz.pages.common import failed, filling, owner_of, uploaded, watch
from viz.player import query_of
from viz.runs import Desk, LiveRun, Store, decode_into
from viz.texts import text

NO_BRANCH: dict[str, Any] = {"run": None}  # hides the player of a followed branch
_KEEP = gr.skip()


class Actions:
    """Handlers of the page. Outputs are named in each docstring, in their order."""

    def __init__(
        self, header: shell.Header, choice: DrafterChoice, desk: Desk, store: Store
    ) -> None:
        self.header = header
        self.choice = choice
        self.desk = desk
        self.store = store
        self.fields = len(self._filled({}))
        """Components that a run's settings fill: header, prompt, drafter, options, rows."""

    async def run(self, request: gr.Request, *asked: Any) -> AsyncIterator[list[Any]]:
        """Decodes what the controls say: status, player, run, stop, check, shown, findings,
        branch, recorded.
        """
        try:
            model, dtype, settings = self._settings(asked)
        except DraftscopeError as error:
            yield failed(str(error), 9)
            return
        cleared: list[Any] = ["", NO_BRANCH, None]
        async for update in self._decode(model, dtype, settings, owner_of(request)):
            yield [*update, *cleared]
            cleared = [_KEEP] * 3

    async def _decode(
        self,
        model: str,
        dtype: str | None,
        settings: Settings,
        owner: str,
        place: Mapping[str, Any] | None = None,
        label: str | None = None,
    ) -> AsyncIterator[list[Any]]:
        """Status, player, run, stop, check, shown while a run is decoded."""
        live = LiveRun(label or text("run.label", drafter=settings.drafter, seed=settings.seed))
        key = self.store.add(live)
        job = decode_into(live, self.desk, owner, model, dtype, settings)
        seen = 0  # a run takes the player's place with its first step, not before
        async for words in watch(self.desk, job):
            player: Any = _KEEP
            if len(live.steps) != seen:
                seen = len(live.steps)
                player = {"run": key, "tick": seen, **(place or {})}
            yield [words, player, *_busy(True), key if seen else _KEEP]
        failure = job.failure()
        if failure is not None and live.steps:
            live.state = "stopped"
        last = {"run": key, "tick": "end", **(place or {})} if live.steps else _KEEP
        yield [self._ended(live, failure), last, *_busy(False), key if live.steps else _KEEP]

    def _ended(self, live: LiveRun, failure: str | None) -> str:
        """The status line of a run that is over."""
        if failure is not None:
            return shell.status(failure, "failed")
        tokens = sum(len(step.committed) for step in live.steps)
        if not live.steps:
            words = text("status.stopped.early")
        elif live.state == "stopped":
            words = text("status.stopped", tokens=tokens)
        else:
            words = text("status.done", tokens=tokens, steps=len(live.steps))
        return shell.status(f"{words} {self.desk.loaded()}".strip())

    def prefill(self, fields: list[Any], run: Run | None) -> None:
        """Builds the fields with a run's settings in them, before anyone has asked for the page."""
        for field, value in zip(fields, self._from_run(run), strict=True):
            if isinstance(value, dict):  # an update of a row, or none at all
                field.visible = value.get("visible", field.visible)
            else:
                field.value = value

    def stop(self, request: gr.Request) -> None:
        """Ends this tab's jobs within a step."""
        self.desk.stop_all(owner_of(request))

    def show_recorded(self, name: str | None) -> list[Any]:
        """Puts a recorded run into the player: status, player, shown, findings, branch, fields."""
        if not name:
            return [_KEEP] * (5 + self.fields)
        try:
            key, live = recorded.keep(name, self.store)
        except TraceError as error:
            return failed(str(error), 5 + self.fields)
        words = shell.status(text("status.shown", label=live.label))
        value = {"run": key, "step": recorded.best_step(live)}
        return [words, value, key, "", NO_BRANCH, *self._from_run(live.run)]

    def open_file(self, path: str | None) -> list[Any]:
        """Opens a saved trace without a model: status, player, shown, findings, branch, recorded,
        fields.
        """
        outputs = 6 + self.fields
        if path is None:
            return [_KEEP] * outputs
        try:
            trace = Trace.from_json(uploaded(path, MAX_BYTES, "error.upload.large"))
            if not trace.steps:
                raise TraceError(text("error.no_steps"))
        except TraceError as error:
            return failed(str(error), outputs)
        label = recorded.label_of(trace)
        live = LiveRun(label, "opened", None, trace.run, list(trace.steps), trace)
        words = shell.status(text("status.opened", label=Path(path).name))
        key = self.store.add(live)
        return [words, {"run": key}, key, "", NO_BRANCH, None, *self._from_run(trace.run)]

    async def check(self, shown: str | None, request: gr.Request) -> AsyncIterator[list[Any]]:
        """Compares the shown run with plain sampling: status, run, stop, check, findings."""
        live = self.store.get(shown)
        if live is None or live.run is None or not live.steps:
            yield failed(text("check.none"), 5)
            return
        if live.run.verification == "rejection":
            yield [_KEEP] * 4 + [check.sentence(text("check.rejection"))]
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

    async def follow(self, event: gr.EventData, request: gr.Request) -> AsyncIterator[list[Any]]:
        """Decodes on from a rejected node as a second run: status, run, stop, check, branch."""
        data = event._data if isinstance(event._data, dict) else {}
        live = self.store.get(data.get("run"))
        settings = branch_settings(live, data.get("step"), data.get("node"))
        if live is None or live.run is None or settings is None:
            yield failed(text("branch.none"), 5)
            return
        step, node = data["step"], data["node"]
        token = visible(live.steps[step].tree.texts[node])
        label = text("branch.label", step=step + 1, token=token)
        owner = owner_of(request)
        run = live.run
        async for update in self._decode(run.model, run.dtype, settings, owner, label=label):
            words, player, *buttons, _ = update
            yield [words, *buttons, player]

    async def load(self, request: gr.Request) -> AsyncIterator[list[Any]]:
        """Shows what the address asks for: status, player, run, stop, check, shown, said."""
        self.desk.warm_up()
        query = dict(request.query_params)
        place = {"step": _step(query.get("step")), "moment": query.get("moment")}
        if not query.get("prompt"):
            name = _recorded(query)
            status, player, shown, *rest = self.show_recorded(name or recorded.FIRST)
            if place["step"] and isinstance(player, dict):
                player = {**player, **place}
            if query.get("tab", "decode") != "decode":
                status = _KEEP  # another page has its own to say
            fields = rest[-self.fields :] if name else self._filled(query)
            yield [status, player, *_busy(False), shown, filling([*fields, name or _KEEP])]
            return
        said = filling([*self._filled(query), None])
        try:
            model, dtype, settings = self._from_query(query)
        except DraftscopeError as error:
            yield [*failed(str(error), 6), said]
            return
        async for update in self._decode(model, dtype, settings, owner_of(request), place):
            yield [*update, said]

    def _from_run(self, run: Run | None) -> list[Any]:
        """Values of the fields that make a run again; its precision is left to this machine."""
        query = query_of(run) if run is not None else {}
        return self._filled({key: value for key, value in query.items() if key != "dtype"})

    def _filled(self, query: Mapping[str, str]) -> list[Any]:
        """Values of the fields that an address holds; what it does not say stays."""
        values = shell.from_query(query)
        said = [values.get(name, _KEEP) for name in vars(self.header)]
        said.append(query.get("prompt", _KEEP))
        if not query.keys() & {"drafter", "prompt"}:
            return said + [_KEEP] * (len(self.choice.components) + len(self.choice.rows))
        drafter = drafter_choice.known(query.get("drafter"))
        return [*said, *self.choice.from_link(drafter, query), *self.choice.shown(drafter)]

    def _from_query(self, query: Mapping[str, str]) -> tuple[str, str | None, Settings]:
        """The run that an address asks for. Raises InputError for values that cannot be used."""
        model, dtype, values = shell.asked_in(query)
        drafter = query.get("drafter", drafter_choice.DEFAULT)
        options = settle_options(drafter, drafter_choice.options_in(drafter, query))
        settings = Settings(
            prompt=query["prompt"], drafter=drafter, drafter_options=options, **values
        )
        return model, dtype, settings

    def _settings(self, asked: tuple[Any, ...]) -> tuple[str, str | None, Settings]:
        """The model, its precision and the settings that the controls say."""
        head = len(vars(self.header))
        prompt, *chosen = asked[head:]
        model, dtype, base = shell.settings_from(self.header, asked[:head], str(prompt or ""))
        drafter, options = self.choice.given(chosen)
        options = settle_options(drafter, options)
        return model, dtype, replace(base, drafter=drafter, drafter_options=options)


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
    return replace(
        base,
        max_new_tokens=max(1, left),
        forced_ids=forced,
        branch=Branch(step=step, node=node, forced=len(forced)),
    )


def _busy(busy: bool) -> list[Any]:
    """Run, stop and check buttons while the model works, or not."""
    return [gr.update(interactive=on) for on in (not busy, busy, not busy)]


def _recorded(query: Mapping[str, str]) -> str | None:
    """The recorded run that an address names."""
    name = query.get("recorded")
    return name if name in recorded.names() else None


def _step(words: str | None) -> int | None:
    if words is None or not words.isdecimal() or len(words) > 6:
        return None
    return int(words) or None
