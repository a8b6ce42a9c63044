"""Renders docs/reference/connectors.md from the declared options: `python -m riverrun.connectors.reference`."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import riverrun.model.connectors as declared
from riverrun.model.connector import Sink, Source

_RUN_BY = {
    "reader": "Run by the app's connector process (`riverrun run`, `riverrun connectors run`).",
    "service": "Run by the app's connector process (`riverrun run`, `riverrun connectors run`), as a server.",
    "writer": "Run by the app's connector process (`riverrun run`, `riverrun connectors run`).",
    "connect": "Run by Kafka Connect (`riverrun up --connect`).",
}


def builtin_connectors() -> list[type[Source] | type[Sink]]:
    """Every connector that comes with riverrun, by name."""
    classes: dict[str, type[Source | Sink]] = {}
    for module in pkgutil.iter_modules(declared.__path__, f"{declared.__name__}."):
        for member in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(member) and issubclass(member, Source | Sink) and member.__module__ == module.name:
                classes[member.__name__] = member
    return [classes[name] for name in sorted(classes, key=str.lower)]


def public_name(connector: type[Source] | type[Sink]) -> str:
    """What users type: `riverrun.<name>(…)`."""
    return connector.__name__.lower()


def docs_page_of(connector: type[Source] | type[Sink], docs: Path) -> str:
    """The page about a connector: named after its module, or the first that uses it. Empty if there is none."""
    name = connector.__module__.rpartition(".")[2]
    for file_name in (f"{name}.md", f"{name}-ingest.md"):
        if (docs / file_name).exists():
            return file_name
    calls = (f"rr.{public_name(connector)}(", f"riverrun.{public_name(connector)}(")
    pages = sorted(docs.glob("*.md"))
    return next((page.name for page in pages if any(call in page.read_text(encoding="utf-8") for call in calls)), "")


def render_page(docs: Path) -> str:
    """The whole page."""
    sections = [
        "# Connectors",
        "Made from the options as they are declared, by `script/docs`. A source is given to `app.source(topic, …)`, a sink "
        "to `app.sink(stream_or_topic, …)`. A secret is a reference: `env:NAME`, or `file:PATH` from the project's folder. "
        "Your own: [own-connector.md](../own-connector.md).",
    ]
    for connector in builtin_connectors():
        sections += _section(connector, docs)
    return "\n\n".join(sections) + "\n"


def _section(connector: type[Source] | type[Sink], docs: Path) -> Iterator[str]:
    kind = "source" if issubclass(connector, Source) else "sink"
    yield f"## riverrun.{public_name(connector)}"
    link = docs_page_of(connector, docs)
    description = " ".join(inspect.getdoc(connector).split()) if connector.__doc__ else ""  # type: ignore[union-attr]
    more = f" More: [{link}](../{link})." if link else ""
    yield f"A {kind}. {description} {_RUN_BY[connector.runs_as]}{more}"
    rows = ["| option | type | default | |", "| --- | --- | --- | --- |"]
    rows += [_row(field) for field in fields(connector) if "help" in field.metadata]  # type: ignore[arg-type]
    yield "\n".join(rows)


def _row(field: Field[Any]) -> str:
    default = "must be given" if field.default is MISSING and field.default_factory is MISSING else _default(field)
    metadata = field.metadata
    description = metadata["help"]
    if metadata.get("secret"):
        description += " Secret."
    if metadata.get("example"):
        description += f" Example: `{metadata['example']}`."
    cells = [f"`{field.name}`", _type_name(field.type), default, description]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _default(field: Field[Any]) -> str:
    make: Any = field.default_factory
    value: Any = make() if field.default is MISSING else field.default
    if value in ("", (), None) or value == {}:
        return "none"
    return f"`{value!r}`" if isinstance(value, str) else f"`{value}`"


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{get_arg!r}`" for get_arg in get_args(kind))
    if inspect.isclass(kind) and get_origin(kind) is None:
        return kind.__name__
    return str(kind).replace("collections.abc.", "").replace("typing.", "")


if __name__ == "__main__":
    sys.stdout.write(render_page(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
