"""Writing a study as a file that perron reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perron.studies.spec import Study

TABLES = ("nodes", "lr", "tuned", "clock", "problem")
INTERNAL = {"folder", "sources", "sizes"}  # keys that perron writes


def to_toml(study: Study) -> str:
    """Return the study as a file that perron reads, without the keys that are not set."""
    content = {
        key: value
        for key, value in study.model_dump(mode="json", exclude=INTERNAL).items()
        if value is not None and not (key == "clock" and not value)
    }
    if "batch" in content["problem"] and content["problem"]["batch"] is None:
        content["problem"]["batch"] = "all"
    for key in ("nodes", "lr"):
        if list(content[key]) == ["default"]:
            content[key] = content[key]["default"]
    tables = {key: content.pop(key) for key in TABLES if content.get(key) and isinstance(content[key], dict)}
    lines = [f"{key} = {_value(value)}" for key, value in content.items()]
    for name, table in tables.items():
        lines += to_lines(name, table)
    return "\n".join(lines) + "\n"


def to_lines(name: str, table: Mapping[str, Any]) -> list[str]:
    """Return a table of a study file as lines, after an empty one."""
    return ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None)]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        if set(value) == {"name"}:
            return _value(value["name"])
        return (
            "{ "
            + ", ".join(f"{_key(key)} = {_value(entry)}" for key, entry in value.items() if entry is not None)
            + " }"
        )
    if isinstance(value, list):
        return (
            _value(value[0])
            if len(value) == 1 and not isinstance(value[0], dict)
            else "[" + ", ".join(map(_value, value)) + "]"
        )
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        return '"""\n' + text[1:-1].replace("\\n", "\n") + '"""' if "\\n" in text and "\\\\n" not in text else text
    return json.dumps(value)
