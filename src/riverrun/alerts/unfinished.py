"""What alerts have still to do of what is written already."""

from riverrun.alerts.kafka_log import read_ledger
from riverrun.alerts.ledger import Ledger
from riverrun.kafka.admin.admin import Admin
from riverrun.kafka.connection import Connection
from riverrun.model.state import Place

NOT_STARTED = "they have not started"


def unfinished(connection: Connection, app: str) -> str:
    """In words: rows that are not judged, messages that are not sent; empty when all is done."""
    ledger = read_ledger(connection, app)
    if not ledger.positions or ledger.life is None:
        return NOT_STARTED
    places = [Place(*place) for place in ledger.positions]
    ends = Admin(connection).offsets(places, "latest", committed_only=True)
    behind = sum(max(0, end - ledger.positions[place.topic, place.partition].offset) for place, end in ends.items())
    if behind:
        return f"{behind} rows are not judged"
    waiting = len(unsent(ledger))
    return f"{waiting} messages are not sent" if waiting else ""


def unsent(ledger: Ledger) -> list[str]:
    """The messages that are the sender's, and that no channel has yet."""
    known = ledger.sent
    return [
        id_
        for id_, each in ledger.letters.items()
        if each.stage == "out" and (id_ not in known or known[id_].delivery.state in ("due", "trying"))
    ]
