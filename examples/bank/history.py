"""What only history answers: what was the least on each account in a month, and when? A running balance cannot tell: what
came late belongs between what was there already, and then everything after it was different.

riverrun run history.py --speed batch
riverrun query "select * from months order by least_cents limit 10"
"""

from app import Transaction

import riverrun as rr

app = rr.App("bank_history")


class Account(rr.Event):
    """Of the account's row, what is asked for."""

    account_id: str = rr.key()
    opening_cents: int


app.topic("transactions", Transaction, partitions=4, retention="365 days")
app.table("accounts", app.topic("bank.accounts", Account, compact=True))

MONTHS = """
    with made as (
        select account_id, ref, any_value(cents) as cents, any_value(at) as at
        from transactions group by account_id, ref),
    standing as (
        select account_id, date_format(at, 'yyyy-MM') as month, at, ref,
            opening_cents + sum(cents) over (partition by account_id order by at, ref) as cents
        from made join accounts using (account_id))
    select account_id, month, min(cents) as least_cents, min_by(at, struct(cents, at, ref)) as least_at,
        max_by(cents, struct(at, ref)) as last_cents
    from standing group by account_id, month"""
app.sql("months", MONTHS, key=("account_id", "month"), speed="batch")

DEEPEST = "select account_id, -least_cents / 100.0 as owed from months order by owed desc, account_id limit 12"
app.dashboard(
    rr.leaderboard("The least of the month", DEEPEST, by="account_id", y="owed", unit="€", width=12),
    title="Months",
)
