"""The JSON Schema of an event class, as stored in a registry.

Closed: a record has the fields of the type and no others. That is what makes a new optional field a compatible change;
in an open schema any name may have been there before, with any value.
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
        (root,), definitions = msgspec.json.schema_components([event], ref_template=_REFERENCE)
    except TypeError as error:
        raise DeclarationError(f"{name} has no JSON Schema", found=str(error), event=name) from error
    root_name = str(root["$ref"]).removeprefix(_REFERENCE.format(name=""))
    schema = definitions.pop(root_name)
    for definition in (schema, *definitions.values()):
        if "properties" in definition:
            definition["additionalProperties"] = False
    if f'"{root["$ref"]}"' in json.dumps([schema, definitions]):
        raise DeclarationError(
            f"{name} has no JSON Schema that registries compare", found="itself inside of it", event=name
        )
    whole = {"$schema": DRAFT, **schema, **({"definitions": definitions} if definitions else {})}
    return json.dumps(whole, ensure_ascii=False)
