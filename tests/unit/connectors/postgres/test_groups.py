"""Which connector a table is followed by."""

import riverrun
from riverrun.connectors.postgres.following import Followed, followed_by
from riverrun.connectors.postgres.groups import Group, assign


def tables(*names: str) -> list[Followed]:
    app = riverrun.App("shop")
    for name in names:
        app.table(name, riverrun.postgres(name, columns="id int"), key="id")
    return followed_by(app)


def test_new_tables_wait_for_a_connector_that_has_not_begun() -> None:
    both = tables("houses", "streets")
    assert assign(both, [], {}) == {"houses": 1, "streets": 1}
    first = Group(1, frozenset({"public.houses"}), begun=False)
    assert assign(both, [first], {}) == {"houses": 1, "streets": 1}
    begun = Group(1, frozenset({"public.houses"}), begun=True)
    assert assign(both, [begun], {}) == {"houses": 1, "streets": 2}
    second = Group(2, frozenset({"public.cities"}), begun=True)
    assert assign(both, [begun, second], {}) == {"houses": 1, "streets": 3}
    assert assign(both, [second], {}) == {"houses": 1, "streets": 1}


def test_a_publication_for_all_tables_has_those_that_were_followed_by_it() -> None:
    """It does not say which those are: a table that nobody remembers is read from the beginning, by another connector."""
    everything = Group(1, frozenset(), begun=True, unnamed=frozenset({"public.houses", "public.streets"}))
    assert assign(tables("houses", "streets"), [everything], {"houses": 1}) == {"houses": 1, "streets": 2}
    assert assign(tables("houses"), [everything], {}) == {"houses": 2}
