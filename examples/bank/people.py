"""A bank in a box: its customers and what they do with their money, minute by minute of the bank's own time.

They pay by card through the day, draw cash, send one another money, are paid once a month and pay their rent the day after.
They move between cities no faster than one can. Thieves try cards out online, many payments in minutes, or use a copy of one
far away from its owner. The same seed gives the same years, to the cent.
"""

import csv
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app import Transaction

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
START = datetime(2026, 11, 16, 6, 0, tzinfo=UTC)
# What a customer does on an average day, thieves and paydays aside; a transfer is two records.
PER_DAY = 4.5
# How busy each hour of the day is.
SHAPE = (1, 1, 0, 0, 0, 1, 4, 9, 10, 8, 8, 10, 14, 13, 9, 8, 9, 12, 14, 12, 9, 7, 4, 2)
KINDS = {"card": 0.72, "atm": 0.1, "transfer": 0.18}
# Of all card payments: how many are followed by a thief's burst, or by a copy of the card elsewhere.
TRIED_OUT, COPIED = 1 / 1500, 1 / 2000
FIRST = (
    "Ada", "Bo", "Cormac", "Dara", "Eve", "Finn", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Liam", "Maeve",
    "Nora", "Oisin", "Pia", "Rosa", "Sean", "Tara", "Una", "Vera", "Will", "Yann", "Zoe",
)  # fmt: skip
LAST = (
    "Adler", "Byrne", "Costa", "Doyle", "Egan", "Fischer", "Greco", "Hayes", "Ivers", "Jansen", "Kelly",
    "Lopes", "Moreau", "Nolan", "Ortiz", "Papas", "Quirke",
)  # fmt: skip
SHOPS = ("Bakery", "Grocer", "Chemist", "Café", "Books", "Fuel", "Cinema", "Shoes", "Lunch", "Tickets")


def cities() -> dict[str, tuple[float, float, int]]:
    with Path(__file__).with_name("cities.csv").open(encoding="utf-8", newline="") as file:
        return {row["city"]: (float(row["lat"]), float(row["lon"]), int(row["people"])) for row in csv.DictReader(file)}


def km_between(a: tuple[float, float, int], b: tuple[float, float, int]) -> int:
    """Whole kilometres between two places of the globe."""
    up, across = math.radians(b[0] - a[0]) / 2, math.radians(b[1] - a[1]) / 2
    north = math.cos(math.radians(a[0])) * math.cos(math.radians(b[0]))
    return round(12742 * math.asin(math.sqrt(math.sin(up) ** 2 + north * math.sin(across) ** 2)))


@dataclass
class Customer:
    """One customer with an account and a card, as they are now."""

    number: int
    name: str
    phone: str
    home: str
    opening_cents: int
    overdraft_cents: int
    salary_cents: int
    rent_cents: int
    payday: int
    city: str = ""
    used: datetime | None = None

    @property
    def account_id(self) -> str:
        return f"acc-{self.number:06}"

    @property
    def card(self) -> str:
        return f"card-{self.number:06}"

    def customer_row(self) -> dict[str, object]:
        return {"customer_id": f"cus-{self.number:06}", "name": self.name, "phone": self.phone, "city": self.home}

    def account_row(self) -> dict[str, object]:
        return {
            "account_id": self.account_id, "customer_id": f"cus-{self.number:06}", "card": self.card,
            "opening_cents": self.opening_cents, "overdraft_cents": self.overdraft_cents,
        }  # fmt: skip


def customers(count: int, seed: int = 1) -> list[Customer]:
    """Those who are there when the bank opens."""
    chance, places = random.Random(f"{seed}/customers"), cities()
    found = []
    for number in range(1, count + 1):
        home = chance.choices(list(places), [place[2] for place in places.values()])[0]
        salary = round(chance.lognormvariate(7.9, 0.3)) * 100
        found.append(Customer(
            number, f"{chance.choice(FIRST)} {chance.choice(LAST)}", phone(chance), home, city=home,
            opening_cents=round(chance.lognormvariate(7.0, 1.1) * 100),
            overdraft_cents=chance.choice((0, 0, 20, 50, 100)) * 1000,
            salary_cents=salary, rent_cents=round(salary * chance.uniform(0.25, 0.4)), payday=chance.randint(1, 28),
        ))  # fmt: skip
    return found


def phone(chance: random.Random) -> str:
    return f"+353 20 91{chance.randrange(10**5):05}"


class Bank:
    """What happens, told as the transactions of each minute, without end."""

    def __init__(self, people: list[Customer], seed: int = 1, start: datetime = START) -> None:
        self._people = people
        self._chance = random.Random(f"{seed}/bank")
        self._now = start
        self._places = cities()
        self._refs = 0
        self._of_day: dict[int, list[Customer]] = {}
        for person in people:
            self._of_day.setdefault(person.payday, []).append(person)

    def minutes(self) -> Iterator[tuple[datetime, list[Transaction]]]:
        """Each minute, with what was done in it and what it leads to later, in no order."""
        while True:
            made = list(self._ordinary())
            if (self._now.hour, self._now.minute) == (6, 30):
                made += self._paid()
            yield self._now, made
            self._now += MINUTE

    def _ordinary(self) -> Iterator[Transaction]:
        chance = self._chance
        expected = len(self._people) * PER_DAY / (1 + KINDS["transfer"]) * SHAPE[self._now.hour] / sum(SHAPE) / 60
        for _ in range(int(expected + chance.random())):
            who = chance.choice(self._people)
            at = self._now + timedelta(milliseconds=chance.randrange(60_000))
            kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
            if kind == "transfer":
                yield from self._transfer(who, at)
            elif kind == "atm":
                yield self._book(
                    who, "atm", -chance.choice((20, 40, 50, 100, 200)) * 100, at, city=self._place(who, at)
                )
            else:
                yield from self._card(who, at)

    def _card(self, who: Customer, at: datetime) -> Iterator[Transaction]:
        chance = self._chance
        city = "" if chance.random() < 0.3 else self._place(who, at)
        yield self._book(who, "card", -self._price(), at, city=city)
        luck = chance.random()
        if luck < TRIED_OUT:
            moment = at + timedelta(minutes=chance.uniform(1, 30))
            for _ in range(chance.randint(7, 12)):
                yield self._book(who, "card", -chance.randint(99, 999), moment)
                moment += timedelta(seconds=chance.randint(5, 40))
        elif city and luck > 1 - COPIED:
            here = self._places[city]
            far = [name for name, place in self._places.items() if km_between(here, place) > 900]
            moment = at + timedelta(minutes=chance.uniform(5, 40))
            yield self._book(who, "card", -chance.randint(20_000, 90_000), moment, city=chance.choice(far))
            # The owner knows nothing of it, and stays where they are for now.
            who.used = max(moment, at)

    def _place(self, who: Customer, at: datetime) -> str:
        """Where a customer is: at home, mostly, and elsewhere only if there was time enough to get there."""
        chance = self._chance
        wanted = chance.choice(list(self._places)) if chance.random() < 0.03 else who.home
        if wanted != who.city:
            km = km_between(self._places[who.city], self._places[wanted])
            if who.used is None or at - who.used > timedelta(hours=2 + km / 500):
                who.city = wanted
        who.used = max(at, who.used or at)
        return who.city

    def _transfer(self, who: Customer, at: datetime) -> Iterator[Transaction]:
        other = self._chance.choice(self._people)
        if other is not who:
            cents, number = self._chance.randint(500, 40_000), self._refs + 1
            for each, sign in ((who, -1), (other, 1)):
                yield self._book(each, "transfer", sign * cents, at, transfer_id=f"t-{number:010}")

    def _paid(self) -> Iterator[Transaction]:
        """Salaries of today, and the rent of those who were paid yesterday."""
        today, yesterday = self._now.day, (self._now - DAY).day
        for each in self._of_day.get(today, []):
            yield self._book(each, "salary", each.salary_cents, self._now, merchant="Payroll")
        for each in self._of_day.get(yesterday, []):
            yield self._book(each, "rent", -each.rent_cents, self._now, merchant="Landlord")

    def _price(self) -> int:
        return max(50, round(self._chance.lognormvariate(2.4, 0.9) * 100))

    def _book(self, who: Customer, kind: str, cents: int, at: datetime, **more: str) -> Transaction:
        self._refs += 1
        shown = {"card": who.card} if kind in ("card", "atm") else {}
        if kind == "card":
            shown["merchant"] = self._chance.choice(SHOPS)
        # The bank's clocks tell milliseconds.
        at = at.replace(microsecond=at.microsecond // 1000 * 1000)
        return Transaction(
            account_id=who.account_id, ref=f"{kind[0]}{self._refs:011}", kind=kind, cents=cents, at=at, **shown | more
        )
