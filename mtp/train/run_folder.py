"""The folder of a training run: settings it must keep, a checkpoint to go on from, its curve."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from mtp.errors import InputError
from mtp.train.completions import source_of

T = TypeVar("T")
CHECKPOINT, CURVE, SETTINGS, DATA = "checkpoint.pt", "curve.jsonl", "settings.json", "data.json"


class RunFolder:
    """Makes the folder and notes in it the settings, of which `free` ones may change when a run
    goes on, and the files of completions it is trained on.

    Raises InputError where the folder's run was begun with other settings or completions.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        free: Collection[str],
        data: Sequence[Path] = (),
    ) -> None:
        self.path = path
        sources = check_data(path, data)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be a run's folder: {error}.") from error
        new = json.loads(json.dumps(settings))
        noted = path / SETTINGS
        if noted.exists():
            old = read_settings(path)
            for name in new.keys() - set(free):
                # What a run does not name, as its version knew no such setting, it did without.
                if (old.get(name) or None) != (new[name] or None):
                    raise InputError(
                        f"The run in {path} has {name} {old.get(name)}, this one {new[name]}; "
                        "take the same or another folder."
                    )
        noted.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
        if sources:
            (path / DATA).write_text(json.dumps(sources, indent=1) + "\n", encoding="utf-8")

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
    settings = _read(path / SETTINGS)
    if not isinstance(settings, dict):
        raise InputError(f"{path / SETTINGS} holds no settings; take another folder.")
    return settings


def check_data(path: Path, files: Sequence[Path]) -> list[dict[str, Any]]:
    """What a card tells of these files of completions. Raises InputError where the run in a folder
    was begun with others; one that did not note them goes on with any.
    """
    sources = [source_of(file) for file in files]
    if sources and (path / DATA).exists() and not same_data(_read(path / DATA), sources):
        raise InputError(
            f"The run in {path} was begun with other completions; give the files it was trained "
            "on, or take another folder."
        )
    return sources


def same_data(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two lists of `source_of` tell of the same completions, whatever the files' names."""
    first, second = ([source["sha256"] for source in sources] for sources in (one, other))
    return first == second


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}.") from error


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


def rows_before(path: Path, begin: Path | None) -> int:
    """How many rows were trained before the run in a folder began as another, 0 where it did not;
    noted as `begin_rows`.
    """
    if begin is None:
        noted = read_settings(path) if (path / SETTINGS).exists() else {}
        return noted.get("begin_rows") or 0
    before = read_settings(begin).get("begin_rows") or 0
    return int(load_checkpoint(begin)["progress"]["counts"].get("rows", 0)) + before


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
