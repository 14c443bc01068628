"""The folder of a training run: settings it must keep, a checkpoint to go on from, its curve."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from mtp.errors import InputError

T = TypeVar("T")
CHECKPOINT, CURVE, SETTINGS = "checkpoint.pt", "curve.jsonl", "settings.json"


class RunFolder:
    """Makes the folder and notes `settings` in it; `free` ones may change when a run goes on.

    Raises InputError where the folder's run was begun with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], free: Collection[str]) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        new = json.loads(json.dumps(settings))
        noted = path / SETTINGS
        if noted.exists():
            old = json.loads(noted.read_text(encoding="utf-8"))
            for name in new.keys() - set(free):
                # What a run does not name, as its version knew no such setting, it did without.
                if (old.get(name) or None) != (new[name] or None):
                    raise InputError(
                        f"The run in {path} has {name} {old.get(name)}, this one {new[name]}; "
                        "take the same or another folder."
                    )
        noted.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")

    def save(self, state: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        """Replaces the checkpoint and adds a line to the curve; an interruption leaves the old
        checkpoint or the new one whole.
        """
        torch.save(dict(state), self.path / f"{CHECKPOINT}.new")
        (self.path / f"{CHECKPOINT}.new").replace(self.path / CHECKPOINT)
        with (self.path / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def load(self) -> dict[str, Any] | None:
        """The checkpoint, or None before the first."""
        return load_checkpoint(self.path) if (self.path / CHECKPOINT).exists() else None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint of the run in a folder. Raises InputError where it has none yet."""
    if not (path / CHECKPOINT).exists():
        raise InputError(f"There is no checkpoint in {path}; train first.")
    state: dict[str, Any] = torch.load(path / CHECKPOINT, map_location="cpu", weights_only=True)
    return state


def read_settings(path: Path) -> dict[str, Any]:
    """What the run in a folder was begun with. Raises InputError where there is no run."""
    if not (path / SETTINGS).exists():
        raise InputError(f"There is no run in {path}; train first.")
    settings: dict[str, Any] = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
    return settings


def recipe_of(path: Path, kind: type[T]) -> T:
    """The recipe, a dataclass, that the run in a folder follows. Raises InputError where there is
    no run.
    """
    return recipe_from(read_settings(path), kind)


def recipe_from(settings: Mapping[str, Any], kind: type[T]) -> T:
    """The recipe, a dataclass, that a run's settings hold, or those on its card."""
    given = {
        field.name: settings[field.name]
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.name in settings
    }
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})


def check_weights(path: Path, weights_sha256: str) -> None:
    """Raises InputError where the run in a folder trained nothing for a base model, or something
    for another one.
    """
    if read_settings(path).get("weights_sha256") != weights_sha256:
        raise InputError(f"The run in {path} was trained for other weights than these.")


def begun_from(path: Path, begin: Path | None) -> str | None:
    """The name of the run that the run in a folder began as: the one given, else the one noted when
    it began, so that it goes on without being told again.
    """
    if begin is not None:
        return begin.name
    return read_settings(path).get("begin") if (path / SETTINGS).exists() else None


def as_options(settings: Mapping[str, Any], leave_out: Collection[str] = ()) -> str:
    """Settings as a command line gives them, for a card; what is None goes without saying."""
    words = [
        f"--{name.replace('_', '-')} "
        + (",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in settings.items()
        if value is not None and name not in leave_out
    ]
    return " ".join(words)


def read_curve(path: Path) -> list[dict[str, Any]]:
    """The lines of its curve, in order."""
    return [json.loads(line) for line in (path / CURVE).read_text(encoding="utf-8").splitlines()]


def thinned(curve: Sequence[dict[str, Any]], most: int) -> Sequence[dict[str, Any]]:
    """Every so many-th line of a curve, counted from its last, for a card: `most` at most."""
    every = max(1, -(-len(curve) // most))
    return curve[::-1][::every][::-1]
