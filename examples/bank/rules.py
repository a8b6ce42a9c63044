"""What the streams of app.py are made of: each transaction once, whose it is, both legs of a transfer, and who was in two
places too soon."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def once(transactions: DataFrame) -> DataFrame:
    """Each transaction once, of those that come within the time that they may be late."""
    return transactions.dropDuplicates(["account_id", "ref", "at"])


def whenever(transactions: DataFrame) -> DataFrame:
    """None of them is too late: Spark knows the event time by its column, and of one that was computed it knows nothing."""
    return transactions.withColumn("at", F.expr("timestamp_micros(unix_micros(at))"))


def owned(rows: DataFrame, accounts: DataFrame, customers: DataFrame) -> DataFrame:
    """Whose account it is: their row and the account's as they are now."""
    return rows.join(accounts, "account_id").join(customers, "customer_id")


def netted(transactions: DataFrame) -> DataFrame:
    """Every transfer: both its legs have its time, whenever they come."""
    legs = once(transactions).where("kind = 'transfer'").groupBy(F.window("at", "1 hour").alias("hour"), "transfer_id")
    return legs.agg(F.count("*").alias("legs"), F.sum("cents").alias("net_cents"), F.max(F.abs("cents")).alias("cents"))


# --- in Spark's SQL; a place has `lat` and `lon` ---


def km(a: str, b: str) -> str:
    """Whole kilometres of the straight way over the globe."""
    up, across = f"radians({b}.lat - {a}.lat) / 2", f"radians({b}.lon - {a}.lon) / 2"
    north = f"cos(radians({a}.lat)) * cos(radians({b}.lat))"
    return f"bigint(round(12742 * asin(sqrt(pow(sin({up}), 2) + {north} * pow(sin({across}), 2)))))"


def jumps(uses: str, km_an_hour: int) -> str:
    """Of a sorted array of `at`, `city`, `lat` and `lon`: the pairs `a` and `b` that nobody can have travelled between."""
    pairs = f"transform(slice({uses}, 2, size({uses})), (b, i) -> named_struct('a', {uses}[i], 'b', b))"
    taken = "(unix_millis(j.b.at) - unix_millis(j.a.at))"
    return f"filter({pairs}, j -> {km('j.a', 'j.b')} * 3600000 > {taken} * {km_an_hour})"
