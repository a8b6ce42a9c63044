"""Did you mean."""

import pytest

from riverrun.model.suggest import nearest


@pytest.mark.parametrize(
    ("word", "found"),
    [("readngs", "readings"), ("READINGS", "readings"), ("orders", "Orders"), ("zzz", None), ("", None)],
)
def test_the_near_name_is_found(word: str, found: str | None) -> None:
    assert nearest(word, ["readings", "Orders"]) == found
