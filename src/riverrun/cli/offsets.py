"""`riverrun offsets`: show the committed offsets of a group, and move them."""

from typing import TYPE_CHECKING

import click

from riverrun.cli.context import cluster_option, confirm, open_admin
from riverrun.cli.groups import partition_rows
from riverrun.cli.output import json_option, plural, print_json, print_rows, say
from riverrun.errors import UsageError

if TYPE_CHECKING:
    from riverrun.kafka.admin.offsets import OffsetTarget


@click.group(epilog="Example: riverrun offsets move billing --to-time '2 hours ago' --dry-run")
def offsets() -> None:
    """Show and move the committed offsets of a consumer group."""


@offsets.command(epilog="Example: riverrun offsets show billing --json")
@click.argument("group")
@cluster_option
@json_option
def show(group: str, bootstrap: str | None, as_json: bool) -> None:
    """Show the committed offset, the end and the lag of each partition."""
    from riverrun.kafka.admin.groups import group_lags

    _, admin = open_admin(bootstrap)
    lags = group_lags(admin, [group])
    if not lags:
        raise admin.group_not_found(group)
    names = ("topic", "partition", "committed", "end", "lag", "lag_seconds")
    rows = [{name: row[name] for name in names} for row in partition_rows(lags[0])]
    print_rows(rows, as_json=as_json, empty=f"{group} has committed nothing.")


@offsets.command(epilog="Example: riverrun offsets move billing --topic orders --to-time '2 hours ago' --dry-run")
@click.argument("group")
@click.option("--topic", "topics", multiple=True, help="Only in this topic. [default: where the group has committed]")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only in this partition.")
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="To the end: skip all there is.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset.")
@click.option("--to-time", metavar="TIME", help='To the first record since then: "2 hours ago", "2026-07-01T10:00Z".')
@click.option("--shift", type=int, help="By this many offsets: -100 back, 50 ahead.")
@click.option("--dry-run", is_flag=True, help="Show the moves, and move nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before skipping offsets.")
@cluster_option
@json_option
def move(
    *,
    group: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    shift: int | None,
    dry_run: bool,
    yes: bool,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    """Move a group that is not running; a group that does not exist yet is started there.

    Exactly one of the --to flags or --shift says where to. An offset that is not there is moved to the nearest that is.
    """
    from riverrun.kafka.admin.offsets import apply_offset_moves, plan_offset_moves

    target = _target(to_earliest, to_latest, to_offset=to_offset, to_time=to_time, shift=shift)
    _, admin = open_admin(bootstrap)
    moves = plan_offset_moves(admin, group, target, topics=topics, partitions=partitions)
    if moves.new:
        say(f"The group {group} does not exist yet: it {'would start' if dry_run else 'starts'} here.")
    if moves.skipped and not dry_run:
        losses = [
            f"{planned_move.topic_partition} {planned_move.before} → {planned_move.after}: skips {planned_move.skipped}"
            for planned_move in moves.moves
            if planned_move.skipped
        ]
        confirm("Skip them?", f"{group} would never read {plural(moves.skipped, 'offset')}", losses, yes=yes)
    if not dry_run:
        apply_offset_moves(admin, moves)
    rows = [planned_move.row() for planned_move in moves.moves]
    if as_json:
        print_json({"group": group, "new": moves.new, "moved": not dry_run, "partitions": rows})
        return
    print_rows(rows, as_json=False, empty=f"{group} has committed nothing that is still there.")
    say(
        f"{'Would move' if dry_run else 'Moved'} {len(moves.changes)} of {plural(len(rows), 'partition')}: "
        f"{plural(moves.reread, 'offset')} to read again, {moves.skipped} skipped."
    )


def _target(
    to_earliest: bool, to_latest: bool, *, to_offset: int | None, to_time: str | None, shift: int | None
) -> "OffsetTarget":
    from riverrun.kafka.admin.offsets import OffsetTarget
    from riverrun.model.positions import epoch_ms, parse_time

    given = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift is not None]
    if sum(given) != 1:
        raise UsageError(
            "It is not clear where to move to",
            expected="exactly one of --to-earliest, --to-latest, --to-offset, --to-time or --shift",
            found=str(sum(given)),
        )
    if to_time is not None:
        return OffsetTarget("time", epoch_ms(parse_time(to_time, what="--to-time")))
    if to_offset is not None:
        return OffsetTarget("offset", to_offset)
    if shift is not None:
        return OffsetTarget("shift", shift)
    return OffsetTarget("earliest" if to_earliest else "latest")
