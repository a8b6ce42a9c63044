"""Smart meters: every house reports its load each minute; above 2 kW an overload begins, below 1.8 kW it ends."""

from datetime import datetime

import riverrun as rr

app = rr.App("meters")


class Reading(rr.Event):
    house_id: str = rr.key()
    street: str
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


class Overload(rr.Event):
    house_id: str = rr.key()
    load_kw: float
    at: datetime = rr.event_time()
    state: str = rr.field(pattern="^(began|ended)$")


readings = app.topic("readings", Reading, partitions=4, retention="7 days")
overloads = app.topic("overloads", Overload, partitions=4, retention="30 days")
