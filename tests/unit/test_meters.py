"""The city of the meters example: its houses and their days, the way its readings take, and what its page asks for."""

import io
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from riverrun.dashboard.tiles.checks import tile_problems
from riverrun.dashboard.tiles.data import tile_data_of
from riverrun.dashboard.tiles.queries import QueryTime, tile_query
from riverrun.errors import RecordUnreadableError
from riverrun.model.dashboard import Tile
from support.meters import METERS, MINUTE, Example, MeterCity, example

BEGIN = datetime(2026, 11, 16, 17, 0, tzinfo=UTC)
WINTER, SUMMER = datetime(2026, 1, 20, tzinfo=UTC), datetime(2026, 7, 21, tzinfo=UTC)
HOUSES = 240


@pytest.fixture(scope="module")
def meters() -> Iterator[Example]:
    with example() as found:
        yield found


@pytest.fixture(scope="module")
def filled(meters: Example) -> MeterCity:
    city = MeterCity(meters, HOUSES, BEGIN)
    city.run(90)
    return city


def mean_load(meters: Example, day: datetime, hours: range) -> float:
    """kW a house, over some hours of a day."""
    city = [meters.city.Household(each) for each in meters.houses.read(HOUSES)]
    moments = [day + timedelta(hours=hour, minutes=minute) for hour in hours for minute in range(0, 60, 15)]
    loads = [each.load_kw(at, meters.city.temperature(at)) for at in moments for each in city]
    return float(sum(loads) / len(loads))


# --- houses ---


def test_the_file_of_houses_is_what_the_generator_makes(meters: Example) -> None:
    made = io.StringIO()
    meters.houses.write(meters.houses.make(3000), made)
    assert (METERS / "houses.csv").read_text(encoding="utf-8") == made.getvalue()
    assert meters.houses.read() == meters.houses.make(3000)
    assert meters.houses.make(5) == meters.houses.make(9)[:5]


def test_nobody_can_be_called_by_the_numbers(meters: Example) -> None:
    phones = [each.phone for each in meters.houses.read()]
    assert all(re.fullmatch(r"\+353 20 91\d \d{4}", phone) for phone in phones)
    assert len(set(phones)) == len(phones)


@pytest.mark.parametrize("count", [0, -1, 3001])
def test_houses_that_are_not_there_are_asked_for(meters: Example, count: int) -> None:
    with pytest.raises(SystemExit, match=f"{count} houses are asked for, and houses.csv has 1 to 3000"):
        meters.houses.read(count)


# --- days ---


def test_a_minute_is_the_same_whenever_it_is_asked_for(meters: Example) -> None:
    houses = meters.houses.read(20)
    forward = list(islice(meters.city.minutes(houses, BEGIN + timedelta(hours=6)), 120))
    later = next(meters.city.minutes(houses, BEGIN + timedelta(hours=7, minutes=30)))
    assert later == forward[90]
    assert next(meters.city.minutes(houses, BEGIN, seed=2)) != next(meters.city.minutes(houses, BEGIN))


def test_no_house_is_like_another_and_all_are_within_their_contract(meters: Example, filled: MeterCity) -> None:
    contracts = {house.house_id: house.contract_kw for house in filled.houses}
    assert all(0 < reading.load_kw < 1.1 * contracts[reading.house_id] for reading in filled.readings)
    assert len({reading.load_kw for reading in filled.readings[:HOUSES]}) > HOUSES * 0.7


def test_the_day_and_the_season_show(meters: Example) -> None:
    evening, night = range(18, 21), range(3, 5)
    assert mean_load(meters, WINTER, evening) > 1.8 * mean_load(meters, WINTER, night)
    assert mean_load(meters, WINTER, range(24)) > 1.1 * mean_load(meters, SUMMER, range(24))
    saturday = SUMMER + timedelta(days=4)
    assert saturday.strftime("%A") == "Saturday"
    assert mean_load(meters, saturday, range(10, 15)) > 1.1 * mean_load(meters, SUMMER, range(10, 15))
    assert 0.3 < mean_load(meters, BEGIN.replace(hour=0), range(24)) < 0.7
    assert meters.city.temperature(WINTER) < meters.city.temperature(SUMMER) - 5


def test_cars_and_heat_pumps_are_where_the_contract_is_large(meters: Example, filled: MeterCity) -> None:
    contracts = {house.house_id: house.contract_kw for house in filled.houses}
    peaks = dict.fromkeys(contracts.values(), 0.0)
    for reading in filled.readings:
        peaks[contracts[reading.house_id]] = max(peaks[contracts[reading.house_id]], reading.load_kw)
    assert peaks[13.8] > 7 > peaks[4.6]


# --- the way ---


def test_what_the_radio_does_to_readings(meters: Example) -> None:
    """All come, some late, some twice, in about the shares that are said; broken records come besides."""
    city, radio = meters.city, meters.city.Radio()
    houses = meters.houses.read(1000)
    sent = [(minute, radio.send(minute)) for minute in islice(city.minutes(houses, BEGIN), 90)]
    true = Counter((each.house_id, each.at) for minute, _ in sent for each in minute)
    came = Counter((reading.house_id, reading.at) for _, each in sent for reading in each.readings)
    assert not came - Counter(dict.fromkeys(true, 2))
    twice = sum(each.twice for _, each in sent)
    assert sum(count == 2 for count in came.values()) == twice
    assert twice == pytest.approx(len(true) * city.TWICE, rel=0.3)
    assert sum(len(each.broken) for _, each in sent) == pytest.approx(len(true) * city.BROKEN, rel=0.5)
    waits = [
        minute[0].at - reading.at for minute, now in sent for reading in now.readings if reading.at != minute[0].at
    ]
    assert sum(MINUTE <= wait <= 2 * MINUTE for wait in waits) == pytest.approx(len(true) * city.LATE, rel=0.3)
    assert sum(wait > 2 * MINUTE for wait in waits) == sum(each.late for _, each in sent) > 0
    # What is not there yet is on its way: nothing is lost.
    assert len(true) - len(came) < len(true) * (city.LATE + city.TOO_LATE)


def test_every_broken_record_of_the_city_is_refused(meters: Example) -> None:
    reading = next(meters.city.minutes(meters.houses.read(1), BEGIN))[0]
    for number in range(len(meters.city.FAULTS)):
        with pytest.raises(RecordUnreadableError):
            meters.app.readings.schema.decode(meters.city.broken(reading, number))


# --- the pipeline and its page ---


def test_the_pipeline_is_a_page_of_code() -> None:
    pipeline, board = (METERS / "app.py").read_text(encoding="utf-8").split("# --- what people see ---")
    assert len(pipeline.splitlines()) < 62
    assert "app.alert(" in pipeline
    assert "app.dashboard(" in board


def tile(city: MeterCity, title: str) -> Tile:
    return next(each for each in city.app.dashboards["main"].tiles if each.title == title)


def rows(city: MeterCity, title: str, **filters: str) -> list[tuple[Any, ...]]:
    """What a tile shows of the store's newest minute."""
    asked = tile(city, title)
    newest = city.readings[-1].at
    sql = tile_query(asked, city.store.tables, filters, QueryTime(newest=newest)).sql
    return list(tile_data_of(asked, city.store.query(sql).rows).rows)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def test_every_tile_can_be_asked(filled: MeterCity) -> None:
    assert list(tile_problems(filled.app.dashboards.values(), filled.store.tables)) == []
    for each in filled.app.dashboards["main"].tiles:
        assert not each.has_query or rows(filled, each.title), each.title


def test_figures_are_what_plain_python_finds(filled: MeterCity) -> None:
    truth, newest = filled.truth, filled.readings[-1].at
    whole = {house: load for (minute, house), load in truth.house_load.items() if minute == newest - MINUTE}
    assert rows(filled, "Above 2 kW") == [(sum(load > 2 for load in whole.values()),)]
    assert rows(filled, "Highest house") == [(max(whole.values()),)]
    city = sum(load for (minute, _), load in truth.street_load.items() if minute == newest - MINUTE)
    assert rows(filled, "City load")[0][0] == pytest.approx(city)
    best = sorted(whole, key=lambda each: (-whole[each], each))[:12]
    owners = {each.house_id: each.owner for each in filled.houses}
    assert rows(filled, "Highest houses") == [(each, owners[each], whole[each]) for each in best]


def test_overloads_that_go_on_and_that_are_over(filled: MeterCity) -> None:
    owners = {each.house_id: each.owner for each in filled.houses}
    newest = filled.readings[-1].at
    open_now = {episode.house_id: episode for episode in filled.truth.episodes if episode.ended is None}
    shown = rows(filled, "Above 2 kW now")
    assert {(house, owner, since, minutes, peak) for house, owner, since, minutes, peak in shown} == {
        (each.house_id, owners[each.house_id], ms(each.began), round((newest - each.began) / MINUTE) + 1, each.peak_kw)
        for each in open_now.values()
    }
    assert [row[2] for row in shown] == sorted((row[2] for row in shown), reverse=True)
    over = [episode for episode in filled.truth.episodes if episode.ended is not None]
    within = [each for each in over if each.ended is not None and each.ended > newest - timedelta(hours=1)]
    assert rows(filled, "Overloads ended") == [(len(within),)]
    assert len(open_now) > 5
    assert len(over) > 20


def test_a_street_has_its_houses(filled: MeterCity) -> None:
    mine = {house.house_id for house in filled.houses if house.street == "Howth Road"}
    assert {row[1] for row in rows(filled, "Houses of {street}", street="Howth Road")} <= mine
    assert {row[0] for row in rows(filled, "Overloads of {street}", street="Howth Road")} <= mine
    assert {row[0] for row in rows(filled, "Above 2 kW now", street="Howth Road")} <= mine
    [(high,)] = rows(filled, "Above 2 kW", street="Howth Road")
    assert 0 < high < rows(filled, "Above 2 kW")[0][0]


def test_the_page_says_how_fast_time_runs(meters: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    from riverrun.app import load_app

    def about() -> str:
        board = load_app(METERS / "app.py").dashboards["main"]
        return next(each.text for each in board.tiles if each.kind == "text")

    assert "faster" not in about()
    monkeypatch.setenv("METERS_SPEED", "60.0")
    assert "**60 times faster**" in about()
