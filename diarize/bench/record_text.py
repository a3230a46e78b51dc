"""A record as JSON text: readable at the top, one line for each sample at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_LONG_LISTS = ("processes", "samples")


def record_text(record: Mapping[str, Any]) -> str:
    """The JSON text of a record, ending with a line feed."""
    parts = []
    for key, value in record.items():
        if key in _LONG_LISTS and value:
            items = ",\n".join(f"    {_line(item)}" for item in value)
            parts.append(f"  {json.dumps(key)}: [\n{items}\n  ]")
        else:
            text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).replace("\n", "\n  ")
            parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(item: Any) -> str:
    return json.dumps(item, ensure_ascii=False, allow_nan=False)
