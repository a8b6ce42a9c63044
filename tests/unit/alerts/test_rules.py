"""Alerts held against their tables, rows read from records, and reference data from files."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import riverrun as rr
from riverrun.alerts.lookup import LookupTable, load_lookup_table
from riverrun.alerts.rows import RejectedRowError, RowReader, row_from_json, row_to_json
from riverrun.alerts.rules import build_rules
from riverrun.errors import DeclarationError
from riverrun.model.pipeline import FileSource, SourceLine, Table
from riverrun.model.table import Column
from support.watching import NOON, rule, table

HOUSES = LookupTable("houses", ("house_id",), (Column("house_id", "text", ()), Column("mobile", "text", ())), {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"when": "load > 2"}, "The alert overload: when names the column load"),
        ({"clear": "loud_kw < 2"}, "The alert overload: clear names the column loud_kw"),
        ({"text": "{owner}"}, "The alert overload: text names the column owner"),
        ({"resolved": "{owner}"}, "The alert overload: resolved names the column owner"),
        ({"to": "phones"}, "Did you mean phone?"),
        ({"to": "at"}, "to names at, a timestamp"),
        ({"by": "house"}, "The alert overload: by names the column house"),
        ({"to": rr.column_of("house", "mobile")}, "Did you mean houses?"),
        ({"to": rr.column_of("houses", "mobil")}, "Did you mean mobile?"),
        ({"quiet": rr.quiet("22:00", "07:00", zone="zone")}, "'zone' is neither a time zone nor a column of house_now"),
    ],
)
def test_what_does_not_fit_its_table_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        rule(lookups={"houses": HOUSES}, **options)
    assert said in str(caught.value)


def test_all_that_is_wrong_is_told_with_its_line() -> None:
    app = rr.App("meters")
    app.alert("good", "house_now", to="phone", text="x")
    app.alert("bad", "house_now", to="phone", text="{tariff}")
    app.alert("lost", "house_nov", to="phone", text="x")
    rules, wrong = build_rules(app.alerts.values(), {"house_now": table()}, {})
    assert [each.name for each in rules] == ["good"]
    assert [(str(line).partition(":")[0], error.hint) for line, error in wrong] == [
        ("test_rules.py", ""),
        ("test_rules.py", "Did you mean house_now?"),
    ]


# --- rows ---


def read(**value: Any) -> dict[str, Any]:
    record = {"house_id": "h1", "at": "2026-01-15T12:00:00Z", **value}
    return dict(RowReader(table()).read(0, 0, NOON, msgspec.json.encode(record)).values)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("load_kw", 2, 2.0),
        ("load_kw", "2.5", 2.5),
        ("load_kw", "NaN", None),
        ("readings", 3.0, 3),
        ("readings", "12", 12),
        ("paid", "1.50", Decimal("1.50")),
        ("known", "true", True),
        ("house_id", {"a": 1}, '{"a":1}'),
        ("at", "2026-01-15T13:00:00+01:00", datetime(2026, 1, 15, 12, tzinfo=UTC)),
        ("at", "2026-01-15T12:00:00", datetime(2026, 1, 15, 12, tzinfo=UTC)),
        ("phone", None, None),
    ],
)
def test_a_value_is_what_its_column_says(name: str, given: Any, value: Any) -> None:
    assert read(**{name: given})[name] == value


def paid(number: str, column: str = "decimal(10,2)") -> Any:
    """A row's decimal, of a number as it stands in JSON."""
    columns = [Column("paid", column, ("paid",)) if each.name == "paid" else each for each in table().columns]
    raw = f'{{"at":"2026-01-15T12:00:00Z","paid":{number}}}'.encode()
    return RowReader(table(columns=tuple(columns))).read(0, 0, NOON, raw).values["paid"]


def test_a_decimal_keeps_its_digits() -> None:
    assert paid("12345678901234567.89", "decimal(19,2)") == Decimal("12345678901234567.89")
    assert str(paid("1.5")) == "1.5"


@pytest.mark.parametrize("number", ["123456789", "1.501", "1e8", "1e999999999", "1e-999999999", '"1e999999999"'])
def test_a_decimal_of_more_digits_than_its_column_has_is_no_row(number: str) -> None:
    with pytest.raises(RejectedRowError, match=r"paid is not decimal\(10,2\)"):
        paid(number)


@pytest.mark.parametrize(
    ("number", "value"),
    [("12345678.90", "12345678.90"), ("1.500", "1.50"), ("1e3", "1000.00"), ("0e-999999999", "0.00"), ("0e9", "0.00")],
)
def test_a_decimal_that_fits_is_as_long_as_its_column(number: str, value: str) -> None:
    assert str(paid(number)) == value


@pytest.mark.parametrize("name", ["readings", "load_kw", "note", "paid"])
def test_a_number_that_no_decimal_can_be_is_no_row(name: str) -> None:
    raw = f'{{"at":"2026-01-15T12:00:00Z","{name}":1e99999999999999999999}}'.encode()
    with pytest.raises(RejectedRowError, match="it has a number that is out of range"):
        RowReader(table()).read(0, 0, NOON, raw)


@pytest.mark.timeout(20)
def test_a_whole_number_is_not_written_out_to_see_whether_it_fits() -> None:
    with pytest.raises(RejectedRowError, match="readings is not bigint"):
        RowReader(table()).read(0, 0, NOON, b'{"at":"2026-01-15T12:00:00Z","readings":1e999999999}')


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("load_kw", "much"),
        ("load_kw", True),
        ("readings", 1.5),
        ("readings", 2**63),
        ("known", "yes"),
        ("known", 1),
        ("at", 12),
        ("at", "noon"),
        ("at", None),
        ("paid", [1]),
    ],
)
def test_a_value_that_does_not_fit_is_no_row(name: str, given: Any) -> None:
    with pytest.raises(RejectedRowError):
        read(**{name: given})


def test_a_window_is_read_by_its_path_and_a_row_survives_json() -> None:
    columns = (
        Column("minute", "timestamp", ("minute", "start")),
        Column("day", "date", ("day",)),
        *table().columns[:-1],
    )
    over = table(columns=columns, time="minute")
    raw = b'{"minute":{"start":"2026-01-15T12:00:00Z"},"day":"2026-01-15","paid":1.5,"house_id":"h1"}'
    row = RowReader(over).read(0, 0, 0, raw).values
    assert (row["minute"], row["day"]) == (datetime(2026, 1, 15, 12, tzinfo=UTC), date(2026, 1, 15))
    assert row_from_json(columns, msgspec.json.decode(msgspec.json.encode(row_to_json(row)))) == row


# --- reference data ---


def looked_up(tmp_path: Path, text: str, *, format: str = "csv", key: str = "house_id", **more: Any) -> LookupTable:  # noqa: A002
    (tmp_path / "houses").write_text(text, encoding="utf-8")
    source = FileSource(format, "houses", **more)  # type: ignore[arg-type]
    return load_lookup_table(Table("houses", source, (key,), SourceLine("meters.py", 1)), tmp_path)


def test_a_table_of_a_file_is_looked_up_by_its_key(tmp_path: Path) -> None:
    text = "house_id,owner,rooms\nh1,Ann,3\nh2,,4\n"
    found = looked_up(tmp_path, text, columns="house_id string, owner string, rooms int")
    assert found.find({"house_id": "h1"}) == {"house_id": "h1", "owner": "Ann", "rooms": 3}
    assert (found.find({"house_id": "h2"}) or {})["owner"] is None
    assert found.find({"house_id": "h3"}) is None
    assert looked_up(tmp_path, text).find({"house_id": "h1"}) == {"house_id": "h1", "owner": "Ann", "rooms": "3"}
    json = looked_up(tmp_path, '{"house_id":"h1","owner":"Ann"}\n', format="json")
    assert json.find({"house_id": "h1"}) == {"house_id": "h1", "owner": "Ann"}


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,b\n1,2\n", {}, "has no column house_id"),
        ("house_id,rooms\nh1,many\n", {"columns": "house_id string, rooms int"}, "row 1 does not fit"),
        ("{", {"format": "json"}, "cannot be read"),
        ("house_id\n", {"format": "parquet"}, "a CSV or JSON file"),
        ("house_id\n", {"options": {"quote": "'"}}, "has the option quote"),
        ("\xff", {"options": {"encoding": "ascii"}}, "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_looked_up_says_why(
    tmp_path: Path, text: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DeclarationError) as caught:
        looked_up(tmp_path, text, **options)
    assert said in str(caught.value)
