"""The auction house of Nexmark: people register, open auctions, and bid."""

from datetime import datetime

import riverrun as rr


class Person(rr.Event):
    person: int = rr.key()
    name: str
    city: str
    state: str
    at: datetime = rr.event_time(late="10 seconds")


class Auction(rr.Event):
    auction: int = rr.key()
    item: str
    seller: int
    category: int
    reserve: int = rr.field(ge=0)
    expires: datetime
    at: datetime = rr.event_time(late="10 seconds")


class Bid(rr.Event):
    auction: int = rr.key()
    bidder: int
    # In cents.
    price: int = rr.field(gt=0)
    at: datetime = rr.event_time(late="10 seconds")
