"""Telephone numbers as people and rows have them, checked against the numbering plans before anybody is asked to send."""

from dataclasses import dataclass

from riverrun.alerts.channels.missing import not_installed


@dataclass(frozen=True)
class Number:
    """A number in international form, or why it is none."""

    e164: str = ""
    region: str = ""
    problem: str = ""


def number_of(text: str, region: str = "", *, any_number: bool = False) -> Number:
    """`+353 85 012 3456`, or `085 012 3456` where a region (IE) is given. Only numbers that can have an SMS are taken; with
    `any_number` all that can be dialled, such as those that are kept free for films."""
    try:
        import phonenumbers
    except ModuleNotFoundError as error:
        raise not_installed("phonenumbers") from error
    written = text.strip()
    if not written.startswith("+") and not region:
        return Number(problem="it has no country code: write +353…, or set alerts.sms_region")
    try:
        found = phonenumbers.parse(written, region.upper() or None)
    except phonenumbers.NumberParseException:
        return Number(problem="it is no telephone number")
    if found.extension:
        return Number(problem="it has an extension, and an SMS cannot dial one")
    e164 = str(phonenumbers.format_number(found, phonenumbers.PhoneNumberFormat.E164))
    if any_number and phonenumbers.is_possible_number(found):
        return Number(e164, phonenumbers.region_code_for_number(found) or "")
    if not phonenumbers.is_valid_number(found):
        return Number(problem="no network has such a number")
    kind = phonenumbers.number_type(found)
    if kind in {phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.PREMIUM_RATE}:
        return Number(problem="it is a number that gets no SMS: a fixed line or a premium one")
    return Number(e164, phonenumbers.region_code_for_number(found) or "")


def is_region(text: str) -> bool:
    """Whether it is a country's two letters, such as IE."""
    try:
        import phonenumbers
    except ModuleNotFoundError as error:
        raise not_installed("phonenumbers") from error
    return text.upper() in phonenumbers.SUPPORTED_REGIONS
