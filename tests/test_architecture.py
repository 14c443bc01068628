"""The rules of the architecture: who may import whom."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

# Inside mtp a module imports only from lines above its own, and from its own package.
ORDER: tuple[tuple[str, ...], ...] = (
    ("mtp.errors",),
    ("mtp.records",),
    ("mtp.sampling",),
    ("mtp.tree",),
    ("mtp.models",),
    ("mtp.probing", "mtp.ptp", "mtp.circuits"),
    ("mtp.drafters",),
    ("mtp.verify",),
    ("mtp.decode",),
    ("mtp.run",),
    ("mtp.lossless",),
    ("mtp.train", "mtp.bench"),
    ("mtp.arguments",),
    ("mtp.recording",),
    ("mtp.__main__",),
)

FIGURES_MAY_IMPORT = ("mtp.records", "viz.theme", "viz.figures")
FIGURES_MAY_USE = ("numpy", "pandas", "networkx", "plotly")


@cache
def source_files() -> tuple[Path, ...]:
    """The program's Python files and stubs: app.py, mtp and viz."""
    found = [path for folder in ("mtp", "viz") for path in (REPOSITORY / folder).rglob("*.py*")]
    found.append(REPOSITORY / "app.py")
    return tuple(
        sorted(path for path in found if path.suffix in (".py", ".pyi") and path.is_file())
    )


def module_of(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of everything imported, inside functions too."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    found: list[tuple[int, str]] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            # `from mtp import verify` imports mtp.verify: the name may be a module.
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return tuple(found)


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def rank(name: str) -> tuple[int, str] | None:
    """The line of ORDER a module of mtp is on, and the entry it belongs to."""
    for line, entries in enumerate(ORDER):
        for entry in entries:
            if within(name, entry):
                return line, entry
    return None


def offences(paths: Iterator[Path], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(REPOSITORY)}:{line} imports {name}"
        for path in paths
        for line, name in imports(path)
        if any(within(name, module) for module in forbidden)
    ]


def under(*parts: str) -> Iterator[Path]:
    folder = REPOSITORY.joinpath(*parts)
    return (path for path in source_files() if folder in path.parents)


def test_there_is_something_to_check() -> None:
    names = {module_of(path) for path in source_files()}
    assert {"app", "mtp.decode", "mtp.records.trace", "viz.theme"} <= names
    assert ("mtp.errors.InputError") in {name for _, name in imports(REPOSITORY / "mtp/decode.py")}


def test_every_module_of_mtp_has_its_place_in_the_order() -> None:
    unknown = [
        module_of(path)
        for path in under("mtp")
        if module_of(path) != "mtp" and rank(module_of(path)) is None
    ]
    assert not unknown, f"put these into the order above: {', '.join(unknown)}"


def test_mtp_imports_downwards_only() -> None:
    wrong = []
    for path in under("mtp"):
        mine = rank(module_of(path))
        for line, name in imports(path):
            theirs = rank(name)
            if mine is None or theirs is None or mine[1] == theirs[1]:
                continue
            if theirs[0] >= mine[0]:
                wrong.append(f"{path.relative_to(REPOSITORY)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_imports_nothing() -> None:
    assert imports(REPOSITORY / "mtp" / "__init__.py") == ()


def test_mtp_knows_nothing_of_pages_or_plots() -> None:
    assert not offences(under("mtp"), ("gradio", "plotly", "viz", "app"))


def test_records_are_plain_data() -> None:
    assert not offences(under("mtp", "records"), ("torch", "transformers"))


def test_figures_import_records_and_the_theme_only() -> None:
    wrong = []
    for path in under("viz", "figures"):
        for line, name in imports(path):
            top = name.partition(".")[0]
            allowed = (
                top in sys.stdlib_module_names
                or top in FIGURES_MAY_USE
                or any(within(name, module) for module in FIGURES_MAY_IMPORT)
            )
            if not allowed:
                wrong.append(f"{path.relative_to(REPOSITORY)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_gradio_stays_in_viz_and_the_app() -> None:
    elsewhere = (
        path
        for path in source_files()
        if path.relative_to(REPOSITORY).parts[0] not in ("viz", "app.py")
        or path.relative_to(REPOSITORY).parts[:2] == ("viz", "figures")
    )
    assert not offences(elsewhere, ("gradio",))


def test_pages_leave_tensors_to_mtp() -> None:
    assert not offences(under("viz", "pages"), ("torch", "transformers"))


@pytest.mark.parametrize("folder", ["mtp", "viz", "tests", "."])
def test_no_exception_is_caught_without_saying_which(folder: str) -> None:
    root = REPOSITORY / folder
    paths = root.glob("*.py") if folder == "." else root.rglob("*.py")
    bare = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in paths
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not bare, "\n".join(bare)


def test_a_file_opens_with_its_subject() -> None:
    without = [
        str(path.relative_to(REPOSITORY))
        for path in source_files()
        if path.suffix == ".py" and not (ast.get_docstring(parsed(path)) or "").strip()
    ]
    assert not without, "\n".join(without)
