"""Nexmark 1, currency conversion: what is every bid in euros?"""

from market import Bid

import riverrun as rr

app = rr.App("nexmark_q1")
app.topic("bids", Bid, partitions=4)

app.sql("in_euros", "select auction, bidder, cast(price * 0.908 as double) as euro_cents, at from bids")
