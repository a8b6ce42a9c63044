"""The JSON Schema of an event class, as a registry keeps it.

Closed: a record has the fields of the type and no others. That is what makes a new optional field a compatible change; in
an open schema any name may have been there before, with any value.
"""

import json
from typing import Any

import msgspec

from riverrun.errors import DeclarationError

DRAFT = "http://json-schema.org/draft-07/schema#"
_REFERENCE = "#/definitions/{name}"


def json_schema(event: type[Any]) -> str:
    """The schema's text, always the same for the same class; DeclarationError for a class that has none."""
    name = event.__name__
    try:
        (root,), parts = msgspec.json.schema_components([event], ref_template=_REFERENCE)
    except TypeError as error:
        raise DeclarationError(f"{name} has no JSON Schema", found=str(error), event=name) from error
    own = str(root["$ref"]).removeprefix(_REFERENCE.format(name=""))
    schema = parts.pop(own)
    for each in (schema, *parts.values()):
        if "properties" in each:
            each["additionalProperties"] = False
    if f'"{root["$ref"]}"' in json.dumps([schema, parts]):
        raise DeclarationError(
            f"{name} has no JSON Schema that registries compare", found="itself inside of it", event=name
        )
    whole = {"$schema": DRAFT, **schema, **({"definitions": parts} if parts else {})}
    return json.dumps(whole, ensure_ascii=False)
