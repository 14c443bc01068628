"""Records as JSON text with a version, read back with a sentence for what is none."""

from __future__ import annotations

import json
import math
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
        plain = strict_json(content)
        found = plain.pop("version")
        if found != version:
            raise TraceError(f"This {what} is of version {found}, not {version}.")
        return adapter.validate_python(plain)
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError
    ) as error:  # fmt: skip
        raise TraceError(f"The file is not a {what}, or it is broken.") from error


def strict_json(content: str | bytes) -> Any:
    """What JSON text holds. Raises ValueError or RecursionError for what is none: numbers that are
    not finite and lone surrogates are refused, too.
    """
    plain = json.loads(content, parse_constant=_finite, parse_float=_finite)
    json.dumps(plain, ensure_ascii=False).encode()  # refuses lone surrogates
    return plain


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is not a finite number")
    return value
