"""The houses of the city and who owns them: reference data, made up and always the same.

python houses.py 3000 > houses.csv
"""

import csv
import random
import sys
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TextIO

FILE = Path(__file__).with_name("houses.csv")
SEED = 1
# Name and how many houses it has beside the others.
STREETS = {
    "Anna Livia Row": 9, "Bend Street": 5, "Commodius Lane": 6, "Dock Road": 10, "Eve's Terrace": 4, "Foundry Hill": 8,
    "Howth Road": 12, "Iron Bridge": 3, "Juniper Way": 7, "Linden Avenue": 9, "Swerve Street": 6, "Vicus Place": 5,
}  # fmt: skip
FIRST = """
    Ada Aoife Brian Cara Ciara Conor Dara Declan Eamon Eimear Emer Finn Fiona Grace Hugh Ida Isla Joan Kevin Kian
    Lea Liam Maeve Marta Mary Nadia Niall Noor Nora Olga Oscar Owen Paul Priya Rosa Rory Sean Sinead Tara Tomas Una
    Vera Yusuf Zoe
""".split()  # noqa: SIM905
LAST = """
    Ahern Bloom Brady Burke Byrne Carroll Casey Clery Connolly Daly Doyle Duffy Dunne Egan Farrell Flynn Healy Hogan
    Hynes Kane Keane Kelly Khan Kowalska Lynch Malone Mulligan Nolan Novak Okafor Purefoy Quinn Riordan Roche Ryan
    Shaw Silva Walsh
""".split()  # noqa: SIM905
# Ireland keeps 020 91x xxxx free for films and books: nobody has these numbers.
PHONE = "+353 20 91{} {:04d}"


@dataclass(frozen=True)
class House:
    """A line of houses.csv. `contract_kw` is what its connection is made for: more where there is a car or a heat pump."""

    house_id: str
    street: str
    owner: str
    phone: str
    tariff: str
    contract_kw: float


def make(count: int, seed: int = SEED) -> list[House]:
    """So many houses. A city with more has the same ones first."""
    return [_house(number, random.Random(f"{seed}/house/{number}")) for number in range(1, count + 1)]


def _house(number: int, chance: random.Random) -> House:
    contract_kw = chance.choices((4.6, 6.9, 9.2, 13.8), (30, 30, 33, 7))[0]
    return House(
        house_id=f"house-{number:05d}",
        street=chance.choices(list(STREETS), list(STREETS.values()))[0],
        owner=f"{chance.choice(FIRST)} {chance.choice(LAST)}",
        phone=PHONE.format(number // 10_000 % 10, number % 10_000),
        tariff=chance.choice(("day and night", "flat")) if contract_kw > 9 else "flat",
        contract_kw=contract_kw,
    )


def write(houses: Iterable[House], file: TextIO) -> None:
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(field.name for field in fields(House))
    lines.writerows(map(astuple, houses))


def read(count: int | None = None, path: Path = FILE) -> list[House]:
    """The first so many houses of the file; all of them without a number."""
    with path.open(encoding="utf-8", newline="") as file:
        found = [House(**line | {"contract_kw": float(line["contract_kw"])}) for line in csv.DictReader(file)]
    if count is not None and not 1 <= count <= len(found):
        more = f" Make it anew: python houses.py {count} > {path.name}" if count > 0 else ""
        raise SystemExit(f"{count} houses are asked for, and {path.name} has 1 to {len(found)}.{more}")
    return found[:count]


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        raise SystemExit(__doc__)
    write(make(int(sys.argv[1])), sys.stdout)
