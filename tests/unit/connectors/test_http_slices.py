"""A large body is taken apart in slices, and a request's time begins when it arrives."""

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from riverrun.connectors.http import record_parser
from riverrun.connectors.http.responses import RequestRejectedError
from support.posting import Posting, reading

if TYPE_CHECKING:
    from riverrun.connectors.http.record_parser import Values

LISTS: list[list[Any]] = [
    [reading(number) for number in range(50)],
    [{"a": [{"b": 1}, {"c": "},{"}], "d": "[,]"} for _ in range(20)],
    [[1, 2], [3, [4, 5]], [], [{}]] * 10,
    ["a,b", "},{", '"', "\\"] * 20,
    list(range(300)),
    [{"long": "x" * 500}, 1, None, True, -1.5e3, "ü€"] * 5,
]


def whole(body: bytes) -> list[bytes] | None:
    try:
        return [bytes(each) for each in msgspec.json.decode(body, type=list[msgspec.Raw])]
    except msgspec.MsgspecError:
        return None


def in_slices(body: bytes) -> list[bytes] | None:
    try:
        return [bytes(value) for values in record_parser._elements(body, 10_000) for value in values]
    except RequestRejectedError as refused:
        return None if refused.code == "INVALID_JSON" else []


@pytest.mark.parametrize("size", [8, 64, 1000])
def test_a_list_is_the_same_in_slices(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parser, "SLICE_BYTES", size)
    for values in LISTS:
        for separators in ((",", ":"), (", ", ": "), (" \n,\r\n", ":")):
            body = json.dumps(values, separators=separators, ensure_ascii=False).encode()
            assert [json.loads(in_slice_) for in_slice_ in in_slices(body) or []] == values


@pytest.mark.parametrize("size", [4, 32])
def test_what_is_no_list_is_none_in_slices(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_parser, "SLICE_BYTES", size)
    for body in (b"[1,2,]", b"[,1]", b"[1,,2]", b"[{},{},]", b"[{}{}]", b"[{},{}", b"[1]]", b"[1],[2]", b"[]", b"[ ]"):
        assert in_slices(body) == whole(body), body
    chance = random.Random(7)
    for _ in range(3000):
        mangled = bytearray(json.dumps(chance.choice(LISTS)[:8], ensure_ascii=False).encode())
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(1, len(mangled))
            mangled[at : at + chance.randint(0, 1)] = chance.choice(
                [b",", b"[", b"]", b"{", b"}", b'"', b"1", b"", b"\\"]
            )
        assert in_slices(bytes(mangled)) == whole(bytes(mangled)), bytes(mangled)


def test_where_it_is_wrong_is_told_for_the_whole_body() -> None:
    good = b"[" + b",".join(json.dumps(reading(number)).encode() for number in range(2_000))
    told = Posting(max_body=2**22, memory=2**23, max_records=5_000).post(good + b",nope]")
    assert told.code == "INVALID_JSON"
    assert f"(byte {len(good) + 2})" in told.json["error"]["message"]


@pytest.mark.parametrize("lines", [False, True])
def test_no_slice_of_a_large_body_is_large(lines: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 16 MiB was parsed in one go, and nobody else was answered meanwhile."""
    rows = [reading(number, tags=[{"n": 1}, {"n": 2}], note="},{" * 20) for number in range(10_000)]
    parsed: list[int] = []
    parse = record_parser._decode_list

    def counted(body: bytes) -> list[msgspec.Raw]:
        parsed.append(len(body))
        return parse(body)

    monkeypatch.setattr(record_parser, "_decode_list", counted)
    body = b"\n".join(json.dumps(row).encode() for row in rows) if lines else json.dumps(rows).encode()
    alone, slices = record_parser._split(body, "lines" if lines else "json", 10_000)
    found: list[Values] = list(slices)
    assert not alone
    assert sum(map(len, found)) == 10_000
    assert max(sum(len(bytes(value)) for value in values) for values in found) < 2 * record_parser.SLICE_BYTES
    assert max(parsed, default=0) < 2 * record_parser.SLICE_BYTES
    assert sum(parsed) < 4 * len(body), "few cuts are tried in vain"


def test_more_than_may_be_is_told_before_all_is_read() -> None:
    read = 0
    with pytest.raises(RequestRejectedError) as refused:  # noqa: PT012
        for values in record_parser._elements(b"[" + b"{}," * 500_000 + b"{}]", 10_000):
            read += len(values)
    assert refused.value.code == "TOO_MANY"
    assert read <= 10_000


def test_a_character_across_two_slices_is_text_and_what_is_none_has_its_place() -> None:
    http = Posting(max_body=2**22, memory=2**23)
    note = "€" * 300_000
    assert http.post({"note": note, "n": 1}, "hooks").code != "NOT_UTF8"
    told = http.post(b'"' + note.encode() + b'\xff"')
    assert told.code == "NOT_UTF8"
    assert f"(byte {3 * 300_000 + 2})" in told.json["error"]["message"]


def test_the_time_of_a_body_counts() -> None:
    """It had 30 s of its own, before the deadline that is promised from a request's arrival on began."""
    http = Posting(timeout=1)

    async def main() -> int:
        async with asyncio.timeout(15):
            told = await http.call("POST", "/topics/readings", b"{}", {"content-type": "application/json"}, stall=True)
        return told.status

    assert asyncio.run(main()) == 408
    assert http.budget.held == 0


def test_what_follows_a_slow_body_has_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    http = Posting(timeout=30)
    deadlines: list[float] = []
    look_up = http.ingest._ensure_topic

    async def looked_up(name: str, deadline: float) -> None:
        deadlines.append(deadline)
        await look_up(name, deadline)

    monkeypatch.setattr(http.ingest, "_ensure_topic", looked_up)
    body = json.dumps(reading(1)).encode()

    async def main() -> float:
        loop, here = asyncio.get_running_loop(), asyncio.Event()
        arrived = loop.time()
        loop.call_later(1.5, here.set)
        told = await http.call("POST", "/topics/readings", body, {"content-type": "application/json"}, stall=here)
        assert told.status == 200
        return arrived

    arrived = asyncio.run(main())
    assert deadlines[0] - arrived < 31
