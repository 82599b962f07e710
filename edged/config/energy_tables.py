"""Tables of the settings of policies and meters, made from the declarations that parse them.

`edged.config.page` puts them into docs/config.md and docs/energy.md.
"""

from __future__ import annotations

from typing import Any

from msgspec import NODEFAULT, Struct, inspect

from governors.meters.settings import External, MetersTable, RadioSettings
from governors.policies.base import Policy, load_all

BUILT_IN = "governors.policies."
_HEAD = "| key | value | default | meaning |\n|---|---|---|---|"
_TYPES: dict[Any, str] = {
    inspect.StrType: "text", inspect.DictType: "table", inspect.FloatType: "number",
    inspect.StructType: "table",
}  # fmt: skip


def policies() -> str:
    """A table for each policy of edged itself that has settings."""
    parts = [
        f"`{name}`:\n\n{_HEAD}\n" + "\n".join(_row(*row) for row in settings_of(kind))
        for name, kind in sorted(load_all().items())
        if kind.declared and kind.__module__.startswith(BUILT_IN)
    ]
    return "\n\n".join(parts)


def settings_of(kind: type[Policy]) -> list[tuple[str, str, str, str]]:
    """Key, value, default and meaning of each setting of a policy."""
    return [
        (key, declared.kind.described, declared.default_text, declared.text)
        for key, declared in kind.declared.items()
    ]


def meters() -> str:
    """The tables of `[meters]`, `[[meters.external]]` and `[meters.radio]`."""
    tables = (
        ("[meters]", MetersTable), ("[[meters.external]]", External),
        ("[meters.radio]", RadioSettings),
    )  # fmt: skip
    return "\n\n".join(f"`{name}`:\n\n{_struct(kind)}" for name, kind in tables)


def _struct(kind: type[Struct]) -> str:
    info: Any = inspect.type_info(kind)
    rows = []
    for field in info.fields:
        text = field.type.extra_json_schema["description"]
        default = "required" if field.required else _default(field)
        rows.append(_row(field.encode_name, _value(field.type), default, text))
    return f"{_HEAD}\n" + "\n".join(rows)


def _default(field: Any) -> str:
    value = field.default
    if value is NODEFAULT or value is None or value == () or value == "":
        return ""
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _value(info: Any) -> str:
    """A type in words."""
    if isinstance(info, inspect.Metadata):
        quantity = (info.extra or {}).get("quantity")
        return str(quantity.described) if quantity else _value(info.type)
    if isinstance(info, inspect.UnionType):
        return _value(next(t for t in info.types if not isinstance(t, inspect.NoneType)))
    if isinstance(info, inspect.VarTupleType):
        inner = _value(info.item_type)
        return "tables" if inner == "table" else f"list of {inner}"
    if isinstance(info, inspect.LiteralType):
        return (" or " if len(info.values) == 2 else ", ").join(map(str, info.values))
    if isinstance(info, inspect.IntType):
        return f"whole number, {info.ge} to {info.le}"
    return _TYPES[type(info)]


def _row(key: str, value: str, default: str, text: str) -> str:
    shown = default if default in ("", "required") else f"`{default}`"
    return f"| `{key}` | {value} | {shown} | {text} |"
