"""What all pages share: header, settings, status line, and the address bar's values."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mtp.errors import InputError
from mtp.models import catalog
from mtp.records.settings import Settings
from viz.texts import text

# Names in an address, and those of the header's fields.
SETTINGS = {
    name: name
    for name in ("model", "dtype", "mode", "temperature", "top_k", "top_p", "verification", "seed")
} | {"new": "max_new_tokens"}
DTYPES = ("auto", "float32", "bfloat16", "float64")


TABS = ("decode", "race", "noise", "circuit")


def remember_tab(tab: str) -> str:
    """A script that puts the tab that was opened into the address bar.

    The first tab opens by itself before the one that the address names: that is not remembered.
    """
    return f"""() => {{
  const query = new URLSearchParams(location.search);
  const known = {json.dumps(TABS)}.includes(query.get('tab'));
  const named = known ? query.get('tab') : {json.dumps(TABS[0])};
  if (!window.draftscopeTab && named !== {json.dumps(tab)} && {json.dumps(tab == TABS[0])}) return;
  window.draftscopeTab = {json.dumps(tab)};
  if (!query.has('tab') && {json.dumps(tab == TABS[0])}) return;
  query.set('tab', {json.dumps(tab)});
  history.replaceState(null, '', `${{location.pathname}}?${{query}}`);
}}"""


def chosen_tab(request: gr.Request) -> Any:
    """Opens the tab that the address names."""
    tab = request.query_params.get("tab")
    return gr.Tabs(selected=tab) if tab in TABS else gr.skip()


@dataclass(frozen=True)
class Header:
    """The settings' components, in the order handlers take them."""

    model: gr.Dropdown
    dtype: gr.Dropdown
    mode: gr.Radio
    temperature: gr.Number
    top_k: gr.Number
    top_p: gr.Number
    verification: gr.Radio
    seed: gr.Number
    max_new_tokens: gr.Number

    @property
    def components(self) -> list[Any]:
        """All of them."""
        return list(vars(self).values())


def title() -> gr.HTML:
    """Name and one line on what this is."""
    return gr.HTML(
        f'<header class="ds-header"><h1>{html.escape(text("app.title"))}</h1>'
        f"<p>{html.escape(text('app.tagline'))}</p></header>"
    )


def settings() -> Header:
    """One row of settings that folds away."""
    models = [entry.name for entry in catalog.ENTRIES.values() if catalog.is_available(entry)]
    with gr.Accordion(text("header.settings"), open=False, elem_classes="ds-settings"):
        with gr.Row(elem_classes="ds-fields"):
            model = gr.Dropdown(
                models,
                value=catalog.DEFAULT_MODEL,
                allow_custom_value=True,
                label=text("header.model"),
                elem_id="model",
                min_width=200,
            )
            dtype = gr.Dropdown(
                [(text("header.dtype.auto"), "auto"), *((name, name) for name in DTYPES[1:])],
                value="auto",
                label=text("header.dtype"),
                elem_id="dtype",
                min_width=160,
            )
            mode = gr.Radio(
                [(text("header.mode.chat"), "chat"), (text("header.mode.raw"), "raw")],
                value="chat",
                label=text("header.mode"),
                elem_id="mode",
                min_width=160,
            )
            verification = gr.Radio(
                [
                    (text("header.verification.coupled"), "coupled"),
                    (text("header.verification.rejection"), "rejection"),
                ],
                value="coupled",
                label=text("header.verification"),
                elem_id="verification",
                min_width=260,
            )
        with gr.Row(elem_classes="ds-fields"):
            temperature = gr.Number(
                0.7,
                step=0.1,
                label=text("header.temperature"),
                elem_id="temperature",
                min_width=110,
            )
            top_k = gr.Number(
                0, precision=0, label=text("header.top_k"), elem_id="top_k", min_width=110
            )
            top_p = gr.Number(
                1, step=0.05, label=text("header.top_p"), elem_id="top_p", min_width=110
            )
            seed = gr.Number(
                0, precision=0, label=text("header.seed"), elem_id="seed", min_width=110
            )
            max_new_tokens = gr.Number(
                64,
                precision=0,
                label=text("header.max_new_tokens"),
                elem_id="max_new_tokens",
                min_width=110,
            )
    return Header(model, dtype, mode, temperature, top_k, top_p, verification, seed, max_new_tokens)


def number(value: object, name: str) -> float:
    """A number field's value. Raises InputError for one that is empty or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(text("error.number", name=name))
    return value


def settings_from(
    header: Header, values: Sequence[Any], prompt: str
) -> tuple[str, str | None, Settings]:
    """Model, precision (None: chosen for the processor) and settings that the header says.

    Raises InputError for a number field that is empty.
    """
    head = dict(zip(vars(header), values, strict=True))
    settings = Settings(
        prompt=prompt,
        mode=head["mode"],
        temperature=number(head["temperature"], text("header.temperature")),
        top_k=int(number(head["top_k"], text("header.top_k"))),
        top_p=number(head["top_p"], text("header.top_p")),
        seed=int(number(head["seed"], text("header.seed"))),
        verification=head["verification"],
        max_new_tokens=int(number(head["max_new_tokens"], text("header.max_new_tokens"))),
    )
    dtype = head["dtype"]
    return str(head["model"] or ""), None if dtype == "auto" else dtype, settings


def status(words: str, state: str = "idle", fraction: float | None = None) -> str:
    """The status line's HTML; state is idle, busy or failed. Errors stay until dismissed."""
    bar = ""
    if state == "busy" and fraction is not None:
        bar = f'<progress max="1" value="{min(1.0, max(0.0, fraction)):.3f}"></progress>'
    close = ""
    if state == "failed":
        label = html.escape(text("status.dismiss"))
        close = f'<button type="button" class="ds-quiet" data-dismiss>{label}</button>'
    role = "alert" if state == "failed" else "status"
    return (
        f'<div class="ds-status ds-{state}" role="{role}"><span class="ds-dot"></span>'
        f'<span class="ds-words">{html.escape(words)}</span>{bar}{close}</div>'
    )


def status_line() -> gr.HTML:
    """The line that says what the model is doing."""
    return gr.HTML(
        status(text("status.ready")),
        elem_id="status",
        js_on_load=(
            "let idle = props.value;"  # what was said before an error
            "watch('value', () => { if (props.value.includes('ds-idle')) idle = props.value; });"
            "element.addEventListener('click', (event) => {"
            " if (event.target.closest('[data-dismiss]')) props.value = idle; });"
        ),
        apply_default_css=False,
    )


def from_query(query: Mapping[str, str]) -> dict[str, Any]:
    """Header values that an address holds, each kept only where it makes sense."""
    values: dict[str, Any] = {}
    for name, most in (("temperature", 5.0), ("top_p", 1.0)):
        found = _real(query.get(name))
        if found is not None and 0 <= found <= most:
            values[name] = found
    for key, name in (("top_k", "top_k"), ("seed", "seed"), ("new", "max_new_tokens")):
        found = _real(query.get(key))
        if found is not None and found >= 0 and found == int(found):
            values[name] = int(found)
    for name, allowed in (
        ("mode", ("chat", "raw")),
        ("verification", ("coupled", "rejection")),
        ("dtype", DTYPES),
    ):
        if query.get(name) in allowed:
            values[name] = query[name]
    if query.get("model"):
        values["model"] = query["model"][:200]
    return values


def unusable(query: Mapping[str, str]) -> str | None:
    """The first setting of an address that cannot be used, as name=value; None where all can."""
    kept = from_query(query)
    for key in SETTINGS:
        if key in query and SETTINGS[key] not in kept:
            return f"{key}={query[key][:40]}"
    return None


def asked_in(query: Mapping[str, str]) -> tuple[str, str | None, dict[str, Any]]:
    """Model, precision (None: chosen for the model) and the other settings of an address that asks
    for something. Raises InputError for one that says what cannot be used.
    """
    wrong = unusable(query)
    if wrong is not None:
        raise InputError(text("error.link", wrong=wrong))
    return usable_in(query)


def refused(query: Mapping[str, str], name: str) -> InputError:
    """What says that this value of an address cannot be used."""
    return InputError(text("error.link", wrong=f"{name}={query.get(name, '')[:40]}"))


def usable_in(query: Mapping[str, str]) -> tuple[str, str | None, dict[str, Any]]:
    """Model, precision and other settings of an address; those that make no sense are left out."""
    values = from_query(query)
    dtype = values.pop("dtype", "auto")
    model = values.pop("model", catalog.DEFAULT_MODEL)
    return model, None if dtype == "auto" else dtype, values


def _real(words: str | None) -> float | None:
    try:
        value = float(words) if words is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
