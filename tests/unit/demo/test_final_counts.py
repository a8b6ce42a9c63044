"""What a demo counts at its end: what is told, and what does not add up."""

from typing import Any

from riverrun.demo.final_counts import AlertCounts, FinalCounts
from riverrun.model.progress import RecordCounts

SENT = {"acknowledged": 10, "broken": 2}


def final(**changes: Any) -> FinalCounts:
    blocks = RecordCounts(read=10, out=3, filtered=5, dead_letters=2, exact=True)
    counts: dict[str, Any] = {
        "sent": SENT, "stored": {"trades": 9, "corrections": 1}, "letters": {"trades": 2}, "streams": {"blocks": blocks},
        "needed": {"blocks": 10}, "rows": {"blocks": 3}, "alerts": AlertCounts(2, 2, 2),
    }  # fmt: skip
    return FinalCounts(**(counts | changes))


def test_what_is_told() -> None:
    candles = RecordCounts(read=10, out=7, dead_letters=2, late=1)
    assert final(streams={"candles": candles}).lines() == [
        "source       acknowledged 10, broken 2",
        "trades       stored 9; dead letters 2",
        "corrections  stored 1; dead letters 0",
        "candles      read 10; out 7, dead 2, late 1",
        "alerts       fired 2, SMS sent 2, on phones 2",
    ]
    assert "blocks       read 10 = out 3 + filtered 5 + dead 2 + late 0" in final().lines()
    assert not any(line.startswith(("source", "alerts")) for line in final(sent={}, alerts=None).lines())


def test_what_does_not_add_up() -> None:
    assert final().violations() == []
    assert final(sent={}, alerts=None).violations() == []
    assert final(sent={"sent": 10}).violations() == []
    assert (
        final(sent={"sent": 11}).violations()
        == final(sent=SENT | {"acknowledged": 9}).violations()
        == ["acknowledged = stored"]
    )
    assert final(letters={"trades": 1}).violations() == ["broken = dead letters"]
    assert final(needed={"blocks": 11}).violations() == ["blocks read all that is stored"]
    assert final(needed={}).violations() == []
    for rows in (2, 4):
        told = [f"blocks: all that went out (3) is in its topic ({rows}), once"]
        assert final(rows={"blocks": rows}).violations() == told
    # What is sent again in real time says which it is.
    assert final(rows={"blocks": 4}, restarted_streams=frozenset({"blocks"})).violations() == []
    lost = RecordCounts(read=10, out=3, filtered=4, dead_letters=2, exact=True)
    assert final(streams={"blocks": lost}).violations() == ["blocks: read = out + filtered + dead + late"]
    for shown in (1, 3):
        assert final(alerts=AlertCounts(2, 2, shown)).violations() == ["every SMS is on a phone, once"]
