"""Numbers are checked before anybody is asked to send."""

import pytest

from riverrun.alerts.channels.phone_number import is_region_code, parse_phone_number


@pytest.mark.parametrize(
    ("text", "region", "e164"),
    [
        ("+353 85 012 3456", "", "+353850123456"),
        (" 085 012 3456 ", "IE", "+353850123456"),
        ("085 012 3456", "ie", "+353850123456"),
        ("+91 98765 43210", "IE", "+919876543210"),
    ],
)
def test_a_number_is_found(text: str, region: str, e164: str) -> None:
    found = parse_phone_number(text, region)
    assert (found.e164, found.problem) == (e164, "")


@pytest.mark.parametrize(
    ("text", "region", "problem"),
    [
        ("085 012 3456", "", "no country code"),
        ("", "IE", "no telephone number"),
        ("none", "IE", "no telephone number"),
        ("+353 85", "", "no network"),
        ("+999 123456789", "", "no telephone number"),
        ("+353 1 679 9999", "", "no SMS"),
        ("+353 85 012 3456 ext. 7", "", "extension"),
        ("+353850123456\r\nTo: +353850000000", "", "no"),
        ("+" + "1" * 5000, "", "no telephone number"),
        ("<script>", "IE", "no telephone number"),
    ],
)
def test_what_is_no_number_says_why(text: str, region: str, problem: str) -> None:
    found = parse_phone_number(text, region)
    assert found.e164 == ""
    assert problem in found.problem


def test_regions_are_two_letters_of_a_country() -> None:
    assert is_region_code("ie")
    assert not is_region_code("XX")
    assert not is_region_code("Ireland")
