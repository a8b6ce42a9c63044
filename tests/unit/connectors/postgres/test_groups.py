"""Which connector a table is followed by."""

import riverrun
from riverrun.connectors.postgres.capture import CapturedTable, captured_tables
from riverrun.connectors.postgres.groups import TableGroup, assign_groups


def tables(*names: str) -> list[CapturedTable]:
    app = riverrun.App("shop")
    for name in names:
        app.table(name, riverrun.postgres(name, columns="id int"), key="id")
    return captured_tables(app)


def test_new_tables_wait_for_a_connector_that_has_not_begun() -> None:
    both = tables("houses", "streets")
    assert assign_groups(both, [], {}) == {"houses": 1, "streets": 1}
    first = TableGroup(1, frozenset({"public.houses"}), started=False)
    assert assign_groups(both, [first], {}) == {"houses": 1, "streets": 1}
    begun = TableGroup(1, frozenset({"public.houses"}), started=True)
    assert assign_groups(both, [begun], {}) == {"houses": 1, "streets": 2}
    second = TableGroup(2, frozenset({"public.cities"}), started=True)
    assert assign_groups(both, [begun, second], {}) == {"houses": 1, "streets": 3}
    assert assign_groups(both, [second], {}) == {"houses": 1, "streets": 1}


def test_a_publication_for_all_tables_has_those_that_were_followed_by_it() -> None:
    """It does not say which those are: a table that nobody remembers is read from the beginning, by another connector."""
    everything = TableGroup(1, frozenset(), started=True, unnamed=frozenset({"public.houses", "public.streets"}))
    assert assign_groups(tables("houses", "streets"), [everything], {"houses": 1}) == {"houses": 1, "streets": 2}
    assert assign_groups(tables("houses"), [everything], {}) == {"houses": 2}
