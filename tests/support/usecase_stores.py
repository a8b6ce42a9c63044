"""Stores in memory that have what the streams of a use case would have written: for its page, in tests and pictures."""

from datetime import timedelta
from typing import Any

from riverrun.model.table import TableSpec
from support.memory_store import MemoryStore, columns
from support.usecases import Modules

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def _table(name: str, key: tuple[str, ...], time: str, /, **types: str) -> TableSpec:
    """Updated by its key, or appended where it has none."""
    return TableSpec(name, name, columns(**types), key, upserts=bool(key), time=time)


def cricket_store(modules: Modules, deliveries: list[Any]) -> MemoryStore:
    said = ("version", "batting", "bowling", "striker", "partner", "bowler", "runs", "extras", "extra", "wicket",
            "dismissed", "at")  # fmt: skip
    ball = ("match_id", "innings", "over_no", "ball_no")
    kinds = {"at": "timestamp"} | dict.fromkeys(
        ("innings", "over_no", "ball_no", "version", "runs", "extras"), "bigint"
    )
    numbers = ("innings", "runs", "wickets", "balls", "target", "needed", "balls_left")
    board = {"match_id": "text", "at": "timestamp", "batting": "text", "bowling": "text", "result": "text"}
    board |= dict.fromkeys(numbers, "bigint") | {"run_rate": "double", "required_rate": "double"}
    store = MemoryStore(
        _table("balls", ball, "at", **{name: kinds.get(name, "text") for name in (*ball, *said)}),
        _table("scoreboard", ("match_id",), "at", **board),
    )
    figures = modules.figures.Figures().add(deliveries)
    store.put("balls", [{name: getattr(each, name) for name in (*ball, *said)} for each in figures.balls.values()])
    newest = {each.match_id: each.at for each in sorted(figures.balls.values(), key=lambda each: each.at)}
    rows = figures.scoreboard()
    store.put("scoreboard", [{"match_id": name, "at": newest[name], **row} for name, row in rows.items()])
    return store


def hashtags_store(modules: Modules, posts: list[Any]) -> MemoryStore:
    minute = {"minute": "timestamp", "minute_end": "timestamp"}
    store = MemoryStore(
        _table("author_minutes", ("minute", "author"), "minute", **minute, author="text", posts="bigint", tags="json"),
        _table("tag_minutes", (), "minute", **minute, tag="text", authors="bigint"),
        _table("trending", (), "span", span="timestamp", span_end="timestamp", tag="text", score="double", votes="bigint",
               now="bigint", usual="double", burst="double"),
    )  # fmt: skip
    figures, last = modules.figures.Figures(posts), max(post.at for post in posts)
    store.put("author_minutes", [
        {"minute": at, "minute_end": at + MINUTE, "author": author, "posts": number, "tags": str(tags)}
        for (at, author), (number, tags) in figures.author_minutes().items()
    ])  # fmt: skip
    # What is final: a minute after its end.
    store.put("tag_minutes", [
        {"minute": at, "minute_end": at + MINUTE, "tag": tag, "authors": authors}
        for (at, tag), authors in figures.tag_minutes().items() if at + 2 * MINUTE <= last
    ])  # fmt: skip
    names = ("score", "votes", "now", "usual", "burst")
    store.put("trending", [
        {"span": end - 15 * MINUTE, "span_end": end, "tag": tag, **dict(zip(names, row, strict=True))}
        for (end, tag), row in figures.trending().items() if end + MINUTE <= last
    ])  # fmt: skip
    return store


def gaming_store(modules: Modules, hits: list[Any]) -> MemoryStore:
    minute = {"minute": "timestamp", "minute_end": "timestamp", "player": "text", "cup": "text", "points": "bigint"}
    store = MemoryStore(
        _table("standings", ("cup", "player"), "at", cup="text", player="text", points="bigint", reached="bigint",
               at="timestamp"),
        _table("duels", ("cup", "round_no", "duel", "player"), "at", cup="text", round_no="bigint", duel="bigint",
               player="text", points="bigint", at="timestamp"),
        _table("sessions", (), "session", session="timestamp", session_end="timestamp", player="text", points="bigint",
               hits="bigint", began="timestamp", ended="timestamp", minutes="double"),
        _table("player_minutes", ("minute", "player"), "minute", **minute),
        _table("outliers", (), "minute", **minute, usual="double", times="double"),
    )  # fmt: skip
    figures, last = modules.figures.Figures(hits), max(hit.at for hit in hits)
    store.put("standings", [
        {"cup": cup, "player": player, "points": points, "reached": reached, "at": last}
        for (cup, player), (points, reached) in figures.standings().items()
    ])  # fmt: skip
    names = ("cup", "round_no", "duel", "player")
    store.put("duels", [
        {**dict(zip(names, key, strict=True)), "points": points, "at": last} for key, points in figures.duels().items()
    ])  # fmt: skip
    store.put("sessions", [
        {"session": began, "session_end": ended + 10 * MINUTE, "player": player, "points": points, "hits": number,
         "began": began, "ended": ended, "minutes": (ended - began) / MINUTE}
        for (player, began), (ended, points, number) in figures.sessions().items() if ended + 11 * MINUTE <= last
    ])  # fmt: skip
    made: dict[tuple[Any, str], dict[str, Any]] = {}
    for hit in figures.hits:
        at = hit.at.replace(second=0, microsecond=0)
        row = {"minute": at, "minute_end": at + MINUTE, "player": hit.player, "cup": hit.cup, "points": 0}
        made.setdefault((at, hit.player), row)["points"] += hit.points
    store.put("player_minutes", made.values())
    store.put("outliers", [
        made[key] | {"usual": usual, "times": points / usual} for key, (points, usual) in figures.outliers().items()
    ])  # fmt: skip
    return store


def mall_store(modules: Modules, counts: list[Any]) -> MemoryStore:
    day = {"day": "timestamp", "day_end": "timestamp"}
    names = ("entered", "exited", "people", "stay_minutes", "full_percent", "at")
    store = MemoryStore(
        _table("zone_minutes", ("minute", "zone"), "minute", minute="timestamp", minute_end="timestamp", zone="text",
               entered="bigint", exited="bigint"),
        _table("zones", ("day", "zone"), "at", **day, zone="text", at="timestamp", entered="bigint", exited="bigint",
               people="bigint", stay_minutes="double", name="text", unit="text", capacity="bigint", full_percent="double"),
        _table("sensors", ("day", "sensor"), "day", **day, sensor="text", minutes="bigint", restarts="bigint",
               at="timestamp"),
    )  # fmt: skip
    figures = modules.figures.Figures(counts)
    store.put("zone_minutes", [
        {"minute": at, "minute_end": at + MINUTE, "zone": zone, "entered": entered, "exited": exited}
        for (at, zone), (entered, exited) in figures.zone_minutes().items()
    ])  # fmt: skip
    store.put("zones", [
        {"day": at, "day_end": at + DAY, "zone": zone, **dict(zip(names, row, strict=True)),
         **{name: figures.areas[zone][name] for name in ("name", "unit")}, "capacity": int(figures.areas[zone]["capacity"])}
        for (at, zone), row in figures.zones().items()
    ])  # fmt: skip
    store.put("sensors", [
        {"day": began, "day_end": began + DAY, "sensor": name, "minutes": minutes, "restarts": restarts, "at": at}
        for (began, name), (minutes, restarts, at) in figures.sensors().items()
    ])  # fmt: skip
    return store


def bank_store(modules: Modules, transactions: list[Any]) -> MemoryStore:
    span, hour = {"span": "timestamp", "span_end": "timestamp"}, {"hour": "timestamp", "hour_end": "timestamp"}
    owner = {"account_id": "text", "name": "text", "phone": "text"}
    transfer = {"transfer_id": "text", "legs": "bigint", "net_cents": "bigint", "cents": "bigint"}
    store = MemoryStore(
        _table("balances", ("account_id",), "at", account_id="text", name="text", cents="bigint", overdraft_cents="bigint",
               transactions="bigint", at="timestamp"),
        _table("velocity", ("span", "account_id"), "at", **span, **owner, payments="bigint", cents="bigint", at="timestamp"),
        _table("travel", ("span", "account_id"), "at", **span, **owner, jumps="bigint", left_city="text", city="text",
               km="bigint", minutes="bigint", at="timestamp"),
        _table("transfers", ("hour", "transfer_id"), "hour", **hour, **transfer),
        _table("unmatched", (), "hour", **hour, **transfer),
        _table("hours", ("hour", "kind"), "hour", **hour, kind="text", transactions="bigint", cents="bigint"),
    )  # fmt: skip
    people = {customer.account_id: customer for customer in modules.people.customers(1200, seed=4)}
    opening = {name: each.opening_cents for name, each in people.items()}
    figures, last = (
        modules.figures.Figures(transactions, opening).all(),
        max(transaction.at for transaction in transactions),
    )
    names, windows = modules.figures.KEYS, modules.figures.WINDOWS
    for stream, rows in figures.items():
        made = []
        for key, figure in rows.items():
            row = dict(zip(names[stream], key, strict=True)) | figure
            if stream in windows:
                row[f"{names[stream][0]}_end"] = key[0] + windows[stream][0]
            if "account_id" in row:
                who = people[row["account_id"]]
                row |= {"name": who.name, "phone": who.phone, "overdraft_cents": who.overdraft_cents}
            # What is final: two hours after its end.
            if stream != "unmatched" or row["hour_end"] + 120 * MINUTE <= last:
                made.append({name: row[name] for name in (column.name for column in store.tables[stream].columns)})
        store.put(stream, made)
    return store


STORES = {
    "cricket": cricket_store,
    "hashtags": hashtags_store,
    "gaming": gaming_store,
    "mall": mall_store,
    "bank": bank_store,
}
