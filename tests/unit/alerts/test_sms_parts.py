"""Parts are what networks charge by: the counts are those of 3GPP TS 23.038 and 23.040."""

import pytest

from riverrun.alerts.channels.sms_parts import compute_sms_parts


@pytest.mark.parametrize(
    ("text", "encoding", "count", "length"),
    [
        ("", "GSM-7", 1, 0),
        ("a" * 160, "GSM-7", 1, 160),
        ("a" * 161, "GSM-7", 2, 161),
        ("a" * 306, "GSM-7", 2, 306),
        ("a" * 307, "GSM-7", 3, 307),
        ("€" * 80, "GSM-7", 1, 160),
        ("€" * 81, "GSM-7", 2, 162),
        ("Ünter Ωmega @£ Ç", "GSM-7", 1, 16),
        ("ç", "UCS-2", 1, 1),
        ("`", "UCS-2", 1, 1),
        ("ж" * 70, "UCS-2", 1, 70),
        ("ж" * 71, "UCS-2", 2, 71),
        ("ж" * 134, "UCS-2", 2, 134),
        ("ж" * 135, "UCS-2", 3, 135),
        ("😀" * 35, "UCS-2", 1, 70),
        ("😀" * 36, "UCS-2", 2, 72),
    ],
)
def test_a_text_has_so_many_parts(text: str, encoding: str, count: int, length: int) -> None:
    found = compute_sms_parts(text)
    assert (found.encoding, found.count, found.length) == (encoding, count, length)


def test_a_character_of_two_places_is_not_cut() -> None:
    # 152 places are taken, and a € needs two of 153: it begins the second part.
    assert compute_sms_parts("a" * 152 + "€" + "a" * 151).count == 2
    assert compute_sms_parts("a" * 152 + "€" + "a" * 152).count == 3
    # 33 pairs are 66 places; a 34th does not fit into 67.
    assert compute_sms_parts("😀" * 66).count == 2
    assert compute_sms_parts("😀" * 67).count == 3
