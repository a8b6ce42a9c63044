"""The differences between two schemas of a topic, in words. A registry only says whether they are incompatible; many do
not say how."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf", "pattern", "minLength", "maxLength",
           "minItems", "maxItems", "enum")  # fmt: skip


@dataclass(frozen=True)
class _SchemaField:
    kind: str
    required: bool


def schema_changes(format_kind: str, before: str, after: str) -> list[str]:
    """Changes that may break readers or records, field by field: removed, new and without a default, of another type."""
    try:
        old_name, old = _fields(format_kind, json.loads(before))
        name, new = _fields(format_kind, json.loads(after))
    except (ValueError, TypeError, KeyError, AttributeError):
        # Somebody else's schema, of a form that ours never have.
        return []
    messages = []
    if format_kind == "AVRO" and name != old_name:
        messages.append(f"the type was called {old_name} and is called {name}: in Avro its name is part of it")
    for path in [*old, *(new_path for new_path in new if new_path not in old)]:
        messages += _change(path, old.get(path), new.get(path))
    return messages


def _change(path: str, old: _SchemaField | None, new: _SchemaField | None) -> Iterator[str]:
    if new is None:
        yield f"{path} was removed"
    elif old is None:
        if new.required:
            yield f"{path} is new and has no default: records from before do not have it"
    elif old.kind != new.kind:
        yield f"{path} was {old.kind} and is {new.kind}"
    elif new.required and not old.required:
        yield f"{path} could be left out and is required now"


def _fields(format_kind: str, schema: Any) -> tuple[str, dict[str, _SchemaField]]:
    if format_kind == "AVRO":
        return str(schema.get("name", "")), dict(_avro_fields(schema, ""))
    return str(schema.get("title", "")), dict(_json_fields(schema, schema.get("definitions", {}), ""))


def _avro_fields(record: Mapping[str, Any], path: str) -> Iterator[tuple[str, _SchemaField]]:
    for field in record["fields"]:
        field_path = f"{path}{field['name']}"
        yield field_path, _SchemaField(_avro_kind(field["type"]), "default" not in field)
        for inner, below in _avro_records(field["type"], field_path):
            yield from _avro_fields(inner, f"{below}.")


def _avro_records(kind: Any, field_path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    if isinstance(kind, list):
        for branch in kind:
            yield from _avro_records(branch, field_path)
    elif isinstance(kind, Mapping):
        if kind["type"] == "record":
            yield kind, field_path
        elif kind["type"] in ("array", "map"):
            yield from _avro_records(kind.get("items") or kind.get("values"), f"{field_path}[]")


def _avro_kind(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(sorted(_avro_kind(branch) for branch in kind))
    if isinstance(kind, Mapping):
        match kind["type"]:
            case "array" | "map":
                return f"{kind['type']} of {_avro_kind(kind.get('items') or kind.get('values'))}"
            case "enum":
                return f"one of {', '.join(kind['symbols'])}"
            case "record":
                return str(kind["name"])
            case other:
                return str(kind.get("logicalType", other))
    return str(kind)


def _json_fields(
    schema: Mapping[str, Any], parts: Mapping[str, Any], path: str, depth: int = 0
) -> Iterator[tuple[str, _SchemaField]]:
    required = schema.get("required", ())
    for name, subschema in schema.get("properties", {}).items():
        field_path = f"{path}{name}"
        yield field_path, _SchemaField(_json_kind(subschema, parts), name in required)
        for inner, below in _json_objects(subschema, parts, field_path):
            if depth < 16:
                yield from _json_fields(inner, parts, f"{below}.", depth + 1)


def _json_objects(
    schema: Mapping[str, Any], parts: Mapping[str, Any], field_path: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    resolved = _resolved(schema, parts)
    if "properties" in resolved:
        yield resolved, field_path
    for branch in resolved.get("anyOf", ()):
        yield from _json_objects(branch, parts, field_path)
    for name in ("items", "additionalProperties"):
        if isinstance(resolved.get(name), Mapping):
            yield from _json_objects(resolved[name], parts, f"{field_path}[]")


def _json_kind(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    resolved = _resolved(schema, parts)
    if "anyOf" in resolved:
        return " or ".join(sorted(_json_kind(branch, parts) for branch in resolved["anyOf"]))
    limits = ", ".join(f"{name} {json.dumps(resolved[name])}" for name in _LIMITS if name in resolved)
    kind = str(resolved.get("format") or resolved.get("contentEncoding") or resolved.get("type", "any"))
    if kind == "array" and isinstance(resolved.get("items"), Mapping):
        kind = f"array of {_json_kind(resolved['items'], parts)}"
    return f"{kind} ({limits})" if limits else kind


def _resolved(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    resolved: Mapping[str, Any] = parts.get(name, schema)
    return resolved
