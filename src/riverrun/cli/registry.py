"""`riverrun registry`: what the schema registry has of topics, and whether it would take what a file declares."""

from typing import TYPE_CHECKING

import click

from riverrun.cli.context import app_option, load_declared, loaded
from riverrun.cli.output import json_option, print_json, print_rows, say
from riverrun.errors import SchemaUnknownError, UsageError
from riverrun.model.framing import subject_of
from riverrun.model.near import nearest

if TYPE_CHECKING:
    from riverrun.kafka.registry.client import Registry


@click.group(epilog="Example: riverrun registry check --app meters.py")
def registry() -> None:
    """Schemas of topics whose format is avro or json-schema: list, show, check."""


def _open() -> "Registry":
    from riverrun.kafka.registry.client import registry_of

    return registry_of(loaded().settings.registry)


@registry.command("list", epilog="Example: riverrun registry list")
@json_option
def list_(as_json: bool) -> None:
    """List what the registry keeps: each subject with its newest version and its kind; and how it compares changes."""
    found = _open()
    rows = []
    for subject in found.subjects():
        latest = found.latest(subject)
        if latest is not None:
            rows.append({
                "subject": subject,
                "version": latest.version,
                "id": latest.id,
                "kind": latest.kind,
            })  # fmt: skip
    print_rows(rows, as_json=as_json, empty="The registry has no schemas.")
    say(f"{found.url} compares changes at the level {found.level()}, where a subject has none of its own.")


@registry.command(epilog="Example: riverrun registry show readings --version 1")
@click.argument("topic")
@click.option("--version", type=click.IntRange(min=1), help="Which version. [default: the newest]")
@json_option
def show(topic: str, version: int | None, as_json: bool) -> None:
    """Print the schema of TOPIC (or of a subject) as the registry has it."""
    found = _open()
    subjects = found.subjects()
    subject = next((each for each in (subject_of(topic), topic) if each in subjects), "")
    if not subject:
        near = nearest(topic, [each.removesuffix("-value") for each in subjects])
        raise SchemaUnknownError(
            f"The schema registry at {found.url} has no schema of {topic}",
            hint=f"Did you mean {near}?" if near else "`riverrun registry list` shows what it has",
            topic=topic,
        )
    versions = found.versions(subject)
    if version is not None and version not in versions:
        raise SchemaUnknownError(
            f"{subject} has no version {version}", expected=", ".join(map(str, versions)), subject=subject
        )
    kept = found.version(subject, version or versions[-1])
    if as_json:
        print_json({"subject": subject, "version": kept.version, "id": kept.id, "kind": kept.kind, "schema": kept.text})
        return
    say(f"{subject}, version {kept.version} of {len(versions)}, id {kept.id}, {kept.kind}")
    click.echo(kept.text)


@registry.command(epilog="Example: riverrun registry check --app meters.py")
@app_option
@json_option
def check(app_file: str | None, as_json: bool) -> None:
    """Ask the registry whether it takes the schemas that the app declares. Changes nothing: for a build, before a deploy.

    Exit code 2 when it does not, with what differs.
    """
    from riverrun.kafka.registry.deploy import compare, refusal

    settings = loaded()
    app = load_declared(settings, app_file)
    if app is None:
        raise UsageError("There is no app to check", hint="Say --app FILE, or set project.app in riverrun.toml")
    compared = compare(settings.settings.registry, list(app.topics.values()))
    print_rows(
        [each.row() for each in compared], as_json=as_json, empty="No topic of the app has a schema in a registry."
    )
    if refused := [each for each in compared if each.state == "refused"]:
        raise refusal(refused, settings.settings.registry.url)
