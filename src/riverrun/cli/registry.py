"""`riverrun registry`: the schemas of topics in the schema registry, and whether it would accept those of a file."""

from typing import TYPE_CHECKING

import click

from riverrun.cli.context import app_option, load_declared, load_settings
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.errors import SchemaUnknownError, UsageError
from riverrun.model.framing import subject_of
from riverrun.model.suggest import nearest

if TYPE_CHECKING:
    from riverrun.kafka.registry.client import Registry


@click.group(epilog="Example: riverrun registry check --app meters.py")
def registry() -> None:
    """Schemas of topics whose format is avro or json-schema: list, show, check."""


def _open() -> "Registry":
    from riverrun.kafka.registry.client import registry_of

    return registry_of(load_settings().settings.registry)


@registry.command("list", epilog="Example: riverrun registry list")
@json_option
def list_(as_json: bool) -> None:
    """List what the registry keeps: each subject with its newest version and its kind; and how it compares changes."""
    client = _open()
    rows = []
    for subject in client.subjects():
        latest = client.latest(subject)
        if latest is not None:
            rows.append({
                "subject": subject,
                "version": latest.version,
                "id": latest.id,
                "kind": latest.schema_type,
            })  # fmt: skip
    print_rows(rows, as_json=as_json, empty="The registry has no schemas.")
    say(
        f"{client.url} compares changes at the level {client.compatibility_level()}, where a subject has none of its own."
    )


@registry.command(epilog="Example: riverrun registry show readings --version 1")
@click.argument("topic")
@click.option("--version", type=click.IntRange(min=1), help="Which version. [default: the newest]")
@json_option
def show(topic: str, version: int | None, as_json: bool) -> None:
    """Print the schema of TOPIC (or of a subject) as the registry has it."""
    client = _open()
    subjects = client.subjects()
    subject = next((candidate for candidate in (subject_of(topic), topic) if candidate in subjects), "")
    if not subject:
        near = nearest(topic, [candidate.removesuffix("-value") for candidate in subjects])
        raise SchemaUnknownError(
            f"The schema registry at {client.url} has no schema of {topic}",
            hint=f"Did you mean {near}?" if near else "`riverrun registry list` shows what it has",
            topic=topic,
        )
    versions = client.versions(subject)
    if version is not None and version not in versions:
        raise SchemaUnknownError(
            f"{subject} has no version {version}", expected=", ".join(map(str, versions)), subject=subject
        )
    schema = client.version(subject, version or versions[-1])
    if as_json:
        print_json(
            {
                "subject": subject,
                "version": schema.version,
                "id": schema.id,
                "kind": schema.schema_type,
                "schema": schema.text,
            }
        )
        return
    say(f"{subject}, version {schema.version} of {len(versions)}, id {schema.id}, {schema.schema_type}")
    click.echo(schema.text)


@registry.command(epilog="Example: riverrun registry check --app meters.py")
@app_option
@json_option
def check(app_file: str | None, as_json: bool) -> None:
    """Ask the registry whether it takes the schemas that the app declares. Changes nothing: for a build, before a deploy.

    Exit code 2 when it does not, with what differs.
    """
    from riverrun.kafka.registry.compatibility import compare_schemas, incompatible_schemas_error

    settings = load_settings()
    app = load_declared(settings, app_file)
    if app is None:
        raise UsageError("There is no app to check", hint="Say --app FILE, or set project.app in riverrun.toml")
    compared = compare_schemas(settings.settings.registry, list(app.topics.values()))
    print_rows(
        [comparison.row() for comparison in compared],
        as_json=as_json,
        empty="No topic of the app has a schema in a registry.",
    )
    if refused := [comparison for comparison in compared if comparison.state == "refused"]:
        raise incompatible_schemas_error(refused, settings.settings.registry.url)
