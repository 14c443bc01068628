"""The choice of a drafter or union, with the options of what is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mtp.drafters.options import OPTIONS, UNION_BUDGET, Option, members_of, options_of, shipped
from mtp.errors import DraftscopeError, InputError
from viz.texts import table, text

DEFAULT = "pld"
UNIONS = ("esp+pld", "esp+stand")  # offered; any other can be typed
_WHOLE = "union"  # the budget that a union's members share


@dataclass(frozen=True)
class DrafterChoice:
    """The components: the drafter, every option of every drafter, and the rows that hold them."""

    drafter: gr.Dropdown
    options: Mapping[str, Mapping[str, Any]]
    rows: Mapping[tuple[str, bool], gr.Row]
    """By drafter and whether the row holds its budget, which a union replaces by its own."""

    @property
    def components(self) -> list[Any]:
        """The drafter, then all options, in the order `given` takes their values."""
        return [self.drafter, *(part for parts in self.options.values() for part in parts.values())]

    def shown(self, name: str) -> list[Any]:
        """Updates of the rows: those of the chosen drafter or of a union's members show."""
        return [gr.update(visible=_shows(name, *key)) for key in self.rows]

    def given(self, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        """The chosen drafter's name and the options that its components say."""
        name, rest = str(values[0]), iter(values[1:])
        said = {
            drafter: {option: next(rest) for option in parts}
            for drafter, parts in self.options.items()
        }
        members = members_of(name)
        if len(members) == 1:
            return name, said[name]
        joined = {
            f"{member}.{option}": value
            for member in members
            for option, value in said[member].items()
            if option != "budget"
        }
        return name, {"budget": said[_WHOLE]["budget"], **joined}

    def from_link(self, name: str, query: Mapping[str, str]) -> list[Any]:
        """Values for `components` that an address holds; what it does not say stays."""
        values: list[Any] = [name]
        union = len(members_of(name)) > 1
        for drafter, parts in self.options.items():
            for option in parts:
                inner = union and drafter != _WHOLE
                key = f"{name}.{drafter}.{option}" if inner else f"{name}.{option}"
                mine = drafter in (_WHOLE, *members_of(name)) and (union or drafter == name)
                values.append(_parsed(drafter, option, query.get(key) if mine else None))
        return values


def build() -> DrafterChoice:
    """Makes the components."""
    names = [*shipped(), *UNIONS]
    words = table()
    drafter = gr.Dropdown(
        [(words.get(f"drafter.{name}", name), name) for name in names],
        value=DEFAULT,
        allow_custom_value=True,
        label=text("decode.drafter"),
        elem_id="drafter",
    )
    options: dict[str, dict[str, Any]] = {}
    rows: dict[tuple[str, bool], gr.Row] = {}
    with gr.Column(elem_classes="ds-options"):
        for name, allowed in [*OPTIONS.items(), (_WHOLE, (UNION_BUDGET,))]:
            options[name] = {}
            for budget in (True, False):
                chosen = [option for option in allowed if (option.name == "budget") == budget]
                key = (name, budget)
                with gr.Row(visible=_shows(DEFAULT, *key)) as rows[key]:
                    for option in chosen:
                        options[name][option.name] = _component(name, option)
    return DrafterChoice(drafter, options, rows)


def known(name: str | None) -> str:
    """The drafter of that name, or the default where there is none."""
    try:
        members_of(name or "")
    except InputError:
        return DEFAULT
    return name or DEFAULT


def options_in(name: str, query: Mapping[str, str]) -> dict[str, str]:
    """The options of a drafter that an address holds."""
    names = (option.name for option in options_of(name))
    return {key: query[f"{name}.{key}"] for key in names if f"{name}.{key}" in query}


def _shows(name: str, drafter: str, budget: bool) -> bool:
    """Whether a row shows while `name` is chosen: never one without a component in it."""
    try:
        members = members_of(name)
    except InputError:
        return False
    own = (UNION_BUDGET,) if drafter == _WHOLE else OPTIONS[drafter]
    if not any((option.name == "budget") == budget for option in own):
        return False
    if drafter == _WHOLE:
        return len(members) > 1
    return drafter in members and not (budget and len(members) > 1)


def _component(drafter: str, option: Option) -> Any:
    label = table().get(f"option.{drafter}.{option.name}", option.about)
    if option.kind == "choice":
        return gr.Dropdown(list(option.choices), value=option.default, label=label, min_width=110)
    if option.kind == "text":
        return gr.Textbox(str(option.default), label=label, min_width=110, max_lines=1)
    return gr.Number(
        float(option.default),
        label=label,
        precision=0 if option.kind == "int" else None,
        min_width=110,
    )


def _parsed(drafter: str, name: str, words: str | None) -> Any:
    if words is None:
        return gr.skip()
    own = (UNION_BUDGET,) if drafter == _WHOLE else OPTIONS[drafter]
    option = next(option for option in own if option.name == name)
    try:
        return option.parse(words, drafter)
    except DraftscopeError:
        return gr.skip()
