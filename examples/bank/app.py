"""A bank: balances as money moves, cards that are used too often or in two places at once, transfers that do not net."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rules import jumps, km, netted, once, owned, whenever

import riverrun as rr

app = rr.App("bank")


class Transaction(rr.Event):
    """A row of the table of that name. Money is in cents, so that sums are exact; what leaves the account is negative."""

    account_id: str = rr.key()
    ref: str  # the channel's own number: a payment that is sent twice has it twice
    kind: str = rr.field(pattern="^(card|atm|transfer|salary|rent)$")
    cents: int
    at: datetime = rr.event_time(late="2 hours")
    card: str = ""
    city: str = ""  # where the card was; empty: online
    merchant: str = ""
    transfer_id: str = ""


# The bank's database, followed: transactions as a stream of changes, customers and accounts as tables that streams join. Who
# has no database fills the same topics by a producer (postgres.follow = false).
transactions = app.topic("transactions", Transaction, partitions=4, retention="365 days")
app.source(transactions, rr.postgres("public.transactions"))
CUSTOMER = "customer_id text, name text, phone text, city text"
ACCOUNT = "account_id text, customer_id text, opening_cents bigint, overdraft_cents bigint"
customers = app.table("customers", rr.postgres("public.customers", columns=CUSTOMER), key="customer_id")
accounts = app.table("accounts", rr.postgres("public.accounts", columns=ACCOUNT), key="account_id")
cities = app.table("cities", rr.csv("cities.csv", "city string, lat double, lon double, people int"), key="city")

# So many payments within ten minutes are somebody trying a card out; nobody travels faster than this.
MANY_PAYMENTS, MOST_KM_AN_HOUR = 6, 900


@app.stream
def balances(transactions: DataFrame, accounts: DataFrame, customers: DataFrame) -> DataFrame:
    """Every account as it stands. No time limit: money counts whenever it comes, and so every `ref` is remembered."""
    moved = whenever(transactions).dropDuplicates(["account_id", "ref"]).groupBy("account_id").agg(
        F.sum("cents").alias("moved"), F.count("*").alias("transactions"), F.max("at").alias("at"))  # fmt: skip
    return owned(moved, accounts, customers).selectExpr(
        "account_id", "name", "opening_cents + moved as cents", "overdraft_cents", "transactions", "at")  # fmt: skip


@app.stream
def velocity(transactions: DataFrame, accounts: DataFrame, customers: DataFrame) -> DataFrame:
    """Ten minutes, beginning with every fifth, in which a card paid too often. From there it can only be more."""
    span = F.window("at", "10 minutes", "5 minutes").alias("span")
    paid = once(transactions).where("kind = 'card'").groupBy(span, "account_id").agg(
        F.count("*").alias("payments"), F.sum(-F.col("cents")).alias("cents"), F.max("at").alias("at"))  # fmt: skip
    many = owned(paid.where(f"payments >= {MANY_PAYMENTS}"), accounts, customers)
    return many.select("span", "account_id", "name", "phone", "payments", "cents", "at")


@app.stream
def travel(transactions: DataFrame, cities: DataFrame, accounts: DataFrame, customers: DataFrame) -> DataFrame:
    """Eight hours, beginning with every fourth, in which a card was in two cities too soon after one another: the last time.
    Whatever comes late between two uses, one of the two ways that it makes of theirs is impossible too."""
    uses = F.array_sort(F.collect_set(F.struct("at", "city", "lat", "lon"))).alias("uses")
    span = F.window("at", "8 hours", "4 hours").alias("span")
    seen = once(transactions).where("city <> ''").join(cities, "city").groupBy(span, "account_id").agg(uses)
    found = seen.selectExpr("span", "account_id", f"{jumps('uses', MOST_KM_AN_HOUR)} as found").where("size(found) > 0")
    found = found.selectExpr("span", "account_id", "size(found) as jumps", "element_at(found, -1) as last")
    return owned(found, accounts, customers).selectExpr(
        "span", "account_id", "name", "phone", "jumps", "last.a.city as left_city", "last.b.city as city",
        f"{km('last.a', 'last.b')} as km", "(unix_millis(last.b.at) - unix_millis(last.a.at)) div 60000 as minutes",
        "last.b.at as at")  # fmt: skip


@app.stream
def transfers(transactions: DataFrame) -> DataFrame:
    return netted(transactions)


@app.stream(emit="final")
def unmatched(transactions: DataFrame) -> DataFrame:
    """Transfers that do not net to zero, told when no leg can come any more."""
    return netted(transactions).where("net_cents <> 0")


@app.stream
def hours(transactions: DataFrame) -> DataFrame:
    """What is done and moved. Of a transfer's two legs the one counts that leaves an account."""
    moved = F.expr("if(kind = 'transfer', greatest(-cents, 0), abs(cents))")
    by_kind = once(transactions).groupBy(F.window("at", "1 hour").alias("hour"), "kind")
    return by_kind.agg(F.count("*").alias("transactions"), F.sum(moved).alias("cents"))


# --- what people hear ---

DESK = "+353 20 910 0700"
app.alert(
    "card_tried_out",
    velocity,
    by="account_id",
    to="phone",
    text="{name}, your card paid {payments} times within ten minutes. Was it you? If not, call us: it is blocked for now.",
    cooldown="12 hours",
    severity="critical",
)
app.alert(
    "card_in_two_places",
    travel,
    by="account_id",
    to="phone",
    text="{name}, your card was used in {city}, {minutes} minutes after {left_city}. It is blocked. Call us.",
    cooldown="12 hours",
    severity="critical",
)
app.alert(
    "fraud_desk",
    travel,
    by="account_id",
    to=[DESK],
    text="{account_id}: {left_city} to {city}, {km} km in {minutes} minutes.",
    cooldown="12 hours",
    digest=rr.digest(most=5, within="1 minute"),
)
app.alert(
    "unmatched_leg",
    unmatched,
    by="transfer_id",
    to=[DESK],
    text="Transfer {transfer_id} of {hour:%d %b %H:%M} does not net to zero: {legs} leg(s), {net_cents} cents over.",
    digest=rr.digest(most=5, within="1 minute"),
)

# --- what people see ---

# Windows overlap: each burst and each jump is told by its newest row.
BURSTS = """
    select account_id, name, max(payments) as payments, max(cents) / 100.0 as euros, max(at) as at
    from velocity group by account_id, name, date_trunc('hour', at) order by at desc, account_id limit 50"""
TRIPS = """
    select at, account_id, name, left_city, city, max(km) as km, max(minutes) as minutes
    from travel group by at, account_id, name, left_city, city order by at desc, account_id limit 50"""
# By the hours, which always move: the newest flag may be days old.
FLAGGED = "select count(distinct account_id) from {} where at > (select max(hour) from hours) - interval '1 day'"
BROKEN = (
    "select hour, transfer_id, legs, net_cents / 100.0 as net, cents / 100.0 as euros from unmatched order by hour desc"
)
# Of accounts that were used at all: before its first transaction, one is not in `balances`.
RED = """
    select account_id, name, -cents / 100.0 as owed, overdraft_cents / 100.0 as allowed from balances
    where cents < -overdraft_cents order by owed desc, account_id limit 12"""
PURSES = """
    select case when cents < 0 then '1: in the red' when cents < 50000 then '2: below 500 €'
        when cents < 200000 then '3: to 2,000 €' when cents < 500000 then '4: to 5,000 €' else '5: more' end as purse,
        count(*) as accounts
    from balances group by 1 order by purse"""
HELD = "select sum(cents) / 100000000.0 from balances"
MOVED = "select hour, kind, cents / 100000.0 as moved from hours where hour > latest - interval '2 days' order by hour, kind"
LAST_HOUR = "select sum(transactions) from hours where hour = latest - interval '1 hour'"
ONE = """
    select account_id, name, cents / 100.0 as balance, overdraft_cents / 100.0 as overdraft, transactions, at as last_used
    from balances"""
OPEN = "select count(*) from transfers where net_cents <> 0"

app.dashboard(
    rr.number("Held in used accounts", HELD, unit="million €", decimals=3, width=3),
    rr.number("Transactions an hour", LAST_HOUR, width=2),
    rr.number("Cards tried out", FLAGGED.format("velocity"), unit="in a day", width=2),
    rr.number("Cards in two places", FLAGGED.format("travel"), unit="in a day", width=2),
    rr.number("Transfers with a leg open", OPEN, width=3),
    rr.area("Moved, hour by hour", MOVED, x="hour", y="moved", by="kind", unit="thousand €", width=8, height=4),
    rr.bar("Used accounts by what is on them", PURSES, by="purse", y="accounts", width=4, height=4),
    rr.rows("Impossible travel: a card in two cities", TRIPS, by="account_id", width=7, height=3),
    rr.rows("Transfers that do not net to zero", BROKEN, width=5, height=3),
    rr.rows("Cards tried out: six payments within ten minutes", BURSTS, by="account_id", width=7, height=4),
    rr.leaderboard("Beyond their overdraft", RED, by="account_id", y="owed", unit="€", decimals=2, width=5, height=4),
    rr.rows("{account_id}", ONE, when="account_id", width=12),
    title="The bank",
)  # fmt: skip
