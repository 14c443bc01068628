"""Records as JSON text with a version, read back with a sentence for what is none."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mtp.errors import TraceError

T = TypeVar("T")


def to_json(adapter: TypeAdapter[T], record: T, version: int) -> str:
    """The record as JSON text with its version."""
    plain: dict[str, Any] = adapter.dump_python(record, mode="json")
    return json.dumps({"version": version, **plain}, ensure_ascii=False)


def from_json(adapter: TypeAdapter[T], content: str | bytes, version: int, what: str) -> T:
    """Reads a record; `what` names it, such as "scaling study". Raises TraceError for what is none,
    or of another version.
    """
    try:
        plain = json.loads(content, parse_constant=_refuse)
        json.dumps(plain, ensure_ascii=False).encode()  # refuses lone surrogates
        found = plain.pop("version")
        if found != version:
            raise TraceError(f"This {what} is of version {found}, not {version}.")
        return adapter.validate_python(plain)
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError
    ) as error:  # fmt: skip
        raise TraceError(f"The file is not a {what}, or it is broken.") from error


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
