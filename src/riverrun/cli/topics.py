"""`riverrun topics`: list, describe, create, alter, delete and apply."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import admin_of, app_option, cluster_option, confirm, load_declared, load_settings, open_admin
from riverrun.cli.output import json_option, plural, print_json, print_rows, say
from riverrun.errors import TopicExistsError, UsageError

if TYPE_CHECKING:
    from riverrun.kafka.admin.admin import Admin
    from riverrun.kafka.admin.topics import TopicDifference
    from riverrun.model.cluster_state import TopicState
    from riverrun.model.event import Event


@click.group(
    invoke_without_command=True,
    epilog="Example: riverrun topics create readings --partitions 4 --retention '7 days'",
)
@click.option("--all", "show_all", is_flag=True, help="Show Kafka's own topics too.")
@cluster_option
@json_option
@click.pass_context
def topics(ctx: click.Context, show_all: bool, bootstrap: str | None, as_json: bool) -> None:
    """List, describe, create, alter and delete topics. Without a subcommand: list them."""
    if ctx.invoked_subcommand is None:
        _list(show_all, bootstrap, as_json)


@topics.command("list", epilog="Example: riverrun topics list --json")
@click.option("--all", "show_all", is_flag=True, help="Show Kafka's own topics too.")
@cluster_option
@json_option
def list_(show_all: bool, bootstrap: str | None, as_json: bool) -> None:
    """List the topics: partitions, replicas, offsets, size on disk, retention, cleanup.

    Offsets are those there are now. In topics that transactions write some of them are markers, not records.
    """
    _list(show_all, bootstrap, as_json)


def _list(show_all: bool, bootstrap: str | None, as_json: bool) -> None:
    from riverrun.kafka.admin.disk_usage import topic_sizes

    settings, admin = open_admin(bootstrap)
    listed = [topic for topic in admin.topics().values() if show_all or not topic.internal]
    partitions = [partition for topic in listed for partition in topic.topic_partitions]
    earliest, latest = admin.offsets(partitions, "earliest"), admin.offsets(partitions, "latest")
    sizes = topic_sizes(settings)
    rows = [
        _summary(
            topic,
            sum(latest[partition] - earliest[partition] for partition in topic.topic_partitions),
            None if sizes is None else sizes.get(topic.name, 0),
            as_json=as_json,
        )
        for topic in listed
    ]
    print_rows(rows, as_json=as_json, empty="There are no topics. Make one: riverrun topics create NAME")


def _summary(topic: "TopicState", offsets: int, size: int | None, *, as_json: bool) -> dict[str, Any]:
    from riverrun.model.units import format_duration, format_size

    values = {name: setting.value for name, setting in topic.config.items()}
    retention, limit = int(values.get("retention.ms", -1)), int(values.get("retention.bytes", -1))
    counts = {"topic": topic.name, "partitions": len(topic.partitions), "replicas": topic.replicas, "offsets": offsets}
    if as_json:
        return {
            **counts,
            "size_bytes": size,
            "retention_ms": retention,
            "retention_bytes": limit,
            "cleanup": values.get("cleanup.policy", ""),
            "state": topic.problem or "ok",
        }
    retention_text = format_duration(retention) + (f", {format_size(limit)} a partition" if limit >= 0 else "")
    return {
        **counts,
        "size": "" if size is None else format_size(size),
        "retention": retention_text if "delete" in values.get("cleanup.policy", "delete") else "",
        "cleanup": values.get("cleanup.policy", ""),
        "state": topic.problem or "ok",
    }


@topics.command(epilog="Example: riverrun topics describe readings")
@click.argument("name")
@click.option("--all", "show_all", is_flag=True, help="Show all settings, not only those that are not Kafka's default.")
@cluster_option
@json_option
def describe(name: str, show_all: bool, bootstrap: str | None, as_json: bool) -> None:
    """Show a topic's partitions (leader, replicas, in-sync replicas, first offset, end) and its settings."""
    _, admin = open_admin(bootstrap)
    _describe(admin, name, show_all=show_all, as_json=as_json)


def _describe(admin: "Admin", name: str, *, show_all: bool, as_json: bool) -> None:
    from riverrun.kafka.admin.topics import format_setting

    topic = admin.topic(name)
    earliest, latest = (
        admin.offsets(topic.topic_partitions, "earliest"),
        admin.offsets(topic.topic_partitions, "latest"),
    )
    partitions = [
        {
            "partition": partition_state.partition,
            "leader": partition_state.leader,
            "replicas": list(partition_state.replicas) if as_json else " ".join(map(str, partition_state.replicas)),
            "in_sync": list(partition_state.in_sync) if as_json else " ".join(map(str, partition_state.in_sync)),
            "earliest": earliest[partition],
            "latest": latest[partition],
            "offsets": latest[partition] - earliest[partition],
        }
        for partition, partition_state in zip(topic.topic_partitions, topic.partitions, strict=True)
    ]
    config = {
        key: partition_state
        for key, partition_state in sorted(topic.config.items())
        if show_all or partition_state.origin != "default"
    }
    if as_json:
        settings = {
            key: {"value": partition_state.value, "origin": partition_state.origin}
            for key, partition_state in config.items()
        }
        print_json({"topic": name, "internal": topic.internal, "partitions": partitions, "config": settings})
        return
    print_rows(partitions, as_json=False)
    click.echo()
    rows = [
        {"setting": key, "value": format_setting(key, partition_state.value), "origin": partition_state.origin}
        for key, partition_state in config.items()
    ]
    print_rows(rows, as_json=False, empty="All settings are Kafka's defaults.")


def _retention_options(command: Any) -> Any:
    """How a topic keeps its records: the same flags for create and alter."""
    for option in reversed((
        click.option("--retention", metavar="TIME", help='Remove records after this time, such as "7 days" or "forever".'),
        click.option("--retention-size", metavar="SIZE", help='Keep at most this much of each partition, such as "1 GiB".'),
        click.option("--compact/--no-compact", default=None, help="Keep only the newest record of each key."),
        click.option("--config", "pairs", metavar="KEY=VALUE", multiple=True, help="Any other topic setting of Kafka's."),
    )):  # fmt: skip
        command = option(command)
    return command


def _pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    config = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UsageError("--config cannot be understood", expected="KEY=VALUE", found=repr(pair))
        config[name.strip()] = value.strip()
    return config


@topics.command(epilog="Example: riverrun topics create readings --partitions 4 --retention '7 days'")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="How many partitions.")
@click.option("--replicas", type=click.IntRange(min=1), help="Copies of each partition. [default: the cluster's]")
@_retention_options
@click.option("--if-not-exists", is_flag=True, help="Be content when the topic is there already, whatever it is like.")
@cluster_option
@json_option
def create(
    *,
    name: str,
    partitions: int,
    replicas: int | None,
    retention: str | None,
    retention_size: str | None,
    compact: bool | None,
    pairs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Create a topic, and wait until it can be written to."""
    from riverrun.kafka.admin.topics import create_topic
    from riverrun.model.topic import Topic

    topic: Topic[Event] = Topic(
        name, None, partitions, replicas or 0, retention, retention_size, bool(compact), _pairs(pairs)
    )
    _, admin = open_admin(bootstrap)
    try:
        create_topic(admin, topic)
        say(f"Created {name} with {plural(partitions, 'partition')}.")
    except TopicExistsError as error:
        if not if_not_exists:
            raise TopicExistsError(
                error.what,
                hint=f"`riverrun topics describe {name}` shows it; --if-not-exists is content with it",
                topic=name,
            ) from error
        say(f"{name} is there already.")
    if as_json:
        _describe(admin, name, show_all=False, as_json=True)


@topics.command(epilog="Example: riverrun topics alter readings --retention '30 days'")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="Raise the number of partitions to this. Moves keys.")
@_retention_options
@click.option("--unset", metavar="KEY", multiple=True, help="Give a setting back to the cluster's default.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask, even when records are lost.")
@cluster_option
@json_option
def alter(
    *,
    name: str,
    partitions: int | None,
    retention: str | None,
    retention_size: str | None,
    compact: bool | None,
    pairs: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Change a topic's settings. Asks first when that loses records or moves keys."""
    from riverrun.kafka.admin.topics import alter_topic, plan_alter

    _, admin = open_admin(bootstrap)
    topic = admin.topic(name)
    config = _alterations(
        topic, retention=retention, retention_size=retention_size, compact=compact, pairs=pairs, unset=unset
    )
    if not config and partitions is None:
        raise UsageError(f"Nothing to change about {name}", hint="`riverrun topics alter --help` lists what can be")
    differences = plan_alter(topic, config=config, partitions=partitions)
    rows = [
        {"setting": difference.setting, "from": difference.real, "to": difference.declared}
        for difference in differences
    ]
    if not dry_run:
        losses = _losses(differences)
        if losses:
            confirm(f"Change {name}?", f"Changing {name} cannot be taken back", losses, yes=yes)
        alter_topic(admin, topic, config=config, partitions=partitions)
    print_rows(rows, as_json=as_json, empty=f"{name} is so already.")


def _losses(differences: "list[TopicDifference]") -> list[str]:
    return [
        f"{difference.setting} {difference.real} → {difference.declared}: {difference.refused}"
        for difference in differences
        if difference.refused
    ]


def _alterations(
    topic: "TopicState",
    *,
    retention: str | None,
    retention_size: str | None,
    compact: bool | None,
    pairs: tuple[str, ...],
    unset: tuple[str, ...],
) -> dict[str, str | None]:
    from riverrun.model.units import parse_duration_ms, parse_size

    config: dict[str, str | None] = dict(_pairs(pairs))
    if retention is not None:
        config["retention.ms"] = str(parse_duration_ms(retention, what="--retention"))
    if retention_size is not None:
        config["retention.bytes"] = str(parse_size(retention_size, what="--retention-size"))
    if compact is not None:
        limited = retention is not None or retention_size is not None
        config["cleanup.policy"] = ("compact,delete" if limited else "compact") if compact else "delete"
    unknown = sorted(set(unset) - set(topic.config))
    if unknown:
        raise UsageError(f"Topics have no setting {', '.join(unknown)}", hint="`topics describe --all` lists them")
    return config | dict.fromkeys(unset)


@topics.command(epilog="Example: riverrun topics delete readings --yes")
@click.argument("names", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Show what would be lost, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_option
@json_option
def delete(names: tuple[str, ...], dry_run: bool, yes: bool, bootstrap: str | None, as_json: bool) -> None:
    """Delete topics with all their records. Names what is lost, and asks."""
    from riverrun.kafka.admin.topics import describe_deletion

    _, admin = open_admin(bootstrap)
    rows = describe_deletion(admin, names)
    if dry_run:
        print_rows(rows, as_json=as_json)
        return
    confirm("Delete for ever?", f"Deleting {', '.join(names)} loses", [_loss_text(row) for row in rows], yes=yes)
    admin.delete_topics(names)
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            say(f"Deleted {_loss_text(row)}.")


def _loss_text(row: Mapping[str, Any]) -> str:
    readers = f"; read by {', '.join(row['groups'])}" if row["groups"] else "; no group reads it"
    return f"{row['topic']}: {plural(row['offsets'], 'offset')} in {plural(row['partitions'], 'partition')}{readers}"


@topics.command(epilog="Example: riverrun topics apply --app meters.py --dry-run")
@app_option
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--more-partitions", is_flag=True, help="Add partitions where more are declared. Moves keys.")
@cluster_option
@json_option
def apply(app_file: str | None, dry_run: bool, more_partitions: bool, bootstrap: str | None, as_json: bool) -> None:
    """Make the cluster's topics what the app declares: create, alter what is safe, refuse the rest.

    The pipeline file is run to read what it declares. Exit code 1 when something is refused, with --dry-run too.
    """
    from riverrun.kafka.admin.topics import apply_topics, topic_differs_error

    settings = load_settings(kafka__bootstrap_servers=bootstrap)
    app = load_declared(settings, app_file)
    if app is None:
        raise UsageError("There is no app to apply", hint="Say --app FILE, or set project.app in riverrun.toml")
    admin = admin_of(settings)
    changes = apply_topics(admin, list(app.topics.values()), allow_more_partitions=more_partitions, dry_run=dry_run)
    print_rows(
        [row for change in changes for row in change.rows()], as_json=as_json, empty="The app declares no topics."
    )
    refused = [change for change in changes if change.action == "refuse"]
    if refused:
        raise topic_differs_error(refused)
    for change in changes:
        if change.undeclared:
            say(
                f"{change.topic} also sets {', '.join(sorted(change.undeclared))}, which the app does "
                "not mention: left as it is."
            )
