"""`riverrun groups`: who reads what, and how far behind."""

from typing import TYPE_CHECKING, Any

import click

from riverrun.cli.context import cluster_option, confirm, open_admin
from riverrun.cli.output import json_option, plural, print_json, print_rows, say

if TYPE_CHECKING:
    from riverrun.kafka.admin.groups import GroupLag


@click.group(invoke_without_command=True, epilog="Example: riverrun groups describe billing")
@cluster_option
@json_option
@click.pass_context
def groups(ctx: click.Context, bootstrap: str | None, as_json: bool) -> None:
    """Show consumer groups: members, partitions, lag in offsets and seconds. Without a subcommand: list them.

    Lag is Kafka's: offsets between the group's position and the end. In topics that transactions write, some offsets are
    their markers, so it may be more than the records that are left.
    Lag in seconds is the age of the oldest record the group has not read; "-" where it is not known.
    """
    if ctx.invoked_subcommand is None:
        _list(bootstrap, as_json)


@groups.command("list", epilog="Example: riverrun groups list --json")
@cluster_option
@json_option
def list_(bootstrap: str | None, as_json: bool) -> None:
    """List the groups: state, members, topics, lag in offsets and in seconds."""
    _list(bootstrap, as_json)


def _list(bootstrap: str | None, as_json: bool) -> None:
    from riverrun.kafka.admin.groups import group_lags

    _, admin = open_admin(bootstrap)
    hidden = not admin.can_see_all_groups()
    rows = [
        {
            "group": lag.group.name,
            "state": lag.group.state,
            "kind": lag.group.kind,
            "members": len(lag.group.members),
            "topics": lag.topics if as_json else ", ".join(lag.topics),
            "lag": lag.lag,
            "lag_seconds": _rounded(lag.lag_seconds),
        }
        for lag in group_lags(admin)
    ]
    print_rows(
        rows, as_json=as_json, empty="No consumer groups are to be seen." if hidden else "There are no consumer groups."
    )
    if hidden and not as_json:
        say(
            "Others may be there: Kafka shows only groups that you may describe (the right Describe on the group, or on the "
            "cluster for all of them)."
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


@groups.command(epilog="Example: riverrun groups describe billing --json")
@click.argument("name")
@cluster_option
@json_option
def describe(name: str, bootstrap: str | None, as_json: bool) -> None:
    """Show where a group stands in each partition, and which member reads it."""
    from riverrun.kafka.admin.groups import group_lags

    _, admin = open_admin(bootstrap)
    lags = group_lags(admin, [name])
    if not lags:
        raise admin.group_not_found(name)
    group = lags[0]
    rows = partition_rows(group)
    if as_json:
        print_json({
            "group": name,
            "state": group.group.state,
            "kind": group.group.kind,
            "members": [
                {"member": member.member_id, "client": member.client_id, "host": member.host}
                for member in group.group.members
            ],
            "lag": group.lag,
            "lag_seconds": _rounded(group.lag_seconds),
            "partitions": rows,
        })  # fmt: skip
        return
    say(f"{name}: {group.group.state}, {plural(len(group.group.members), 'member')}, {group.group.kind} protocol")
    print_rows(rows, as_json=False, empty=f"{name} has committed nothing and reads nothing.")


def partition_rows(group: "GroupLag") -> list[dict[str, Any]]:
    """One row per partition of a group."""
    return [
        {
            "topic": partition.topic_partition.topic,
            "partition": partition.topic_partition.partition,
            "committed": partition.committed,
            "end": partition.end,
            "lag": partition.lag,
            "lag_seconds": _rounded(partition.lag_seconds),
            "member": partition.member.member_id if partition.member else None,
            "client": partition.member.client_id if partition.member else None,
            "host": partition.member.host if partition.member else None,
        }
        for partition in group.partitions
    ]


@groups.command(epilog="Example: riverrun groups delete billing --yes")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be lost, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_option
@json_option
def delete(name: str, dry_run: bool, yes: bool, bootstrap: str | None, as_json: bool) -> None:
    """Delete a group that has no members: it forgets what it has read."""
    from riverrun.kafka.admin.groups import delete_group, group_lags, require_idle

    _, admin = open_admin(bootstrap)
    lags = group_lags(admin, [name], seconds=False)
    if not lags:
        raise admin.group_not_found(name)
    require_idle(lags[0].group)
    rows = [
        {
            "topic": partition.topic_partition.topic,
            "partition": partition.topic_partition.partition,
            "committed": partition.committed,
        }
        for partition in lags[0].partitions
    ]
    if not dry_run:
        losses = [f"{partition.topic_partition} committed at {partition.committed}" for partition in lags[0].partitions]
        confirm(f"Delete the group {name}?", f"Deleting the group {name} loses its offsets", losses, yes=yes)
        delete_group(admin, name)
        say(f"Deleted the group {name}.")
    if dry_run or as_json:
        print_rows(rows, as_json=as_json, empty=f"{name} has committed nothing.")
