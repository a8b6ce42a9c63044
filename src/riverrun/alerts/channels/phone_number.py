"""Parses telephone numbers, and checks them against the numbering plans before anything is sent."""

from dataclasses import dataclass

from riverrun.alerts.channels.missing_package import not_installed_error


@dataclass(frozen=True)
class PhoneNumber:
    """A number in international form, or why it is not valid."""

    e164: str = ""
    region: str = ""
    problem: str = ""


def parse_phone_number(text: str, region: str = "", *, any_number: bool = False) -> PhoneNumber:
    """Parse `+353 85 012 3456`, or `085 012 3456` with a region (IE). Only numbers that can get an SMS are valid; with
    `any_number` all that can be dialled, such as those reserved for films."""
    try:
        import phonenumbers
    except ModuleNotFoundError as error:
        raise not_installed_error("phonenumbers") from error
    stripped = text.strip()
    if not stripped.startswith("+") and not region:
        return PhoneNumber(problem="it has no country code: write +353…, or set alerts.sms_region")
    try:
        parsed = phonenumbers.parse(stripped, region.upper() or None)
    except phonenumbers.NumberParseException:
        return PhoneNumber(problem="it is no telephone number")
    if parsed.extension:
        return PhoneNumber(problem="it has an extension, and an SMS cannot dial one")
    e164 = str(phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164))
    if any_number and phonenumbers.is_possible_number(parsed):
        return PhoneNumber(e164, phonenumbers.region_code_for_number(parsed) or "")
    if not phonenumbers.is_valid_number(parsed):
        return PhoneNumber(problem="no network has such a number")
    kind = phonenumbers.number_type(parsed)
    if kind in {phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.PREMIUM_RATE}:
        return PhoneNumber(problem="it is a number that gets no SMS: a fixed line or a premium one")
    return PhoneNumber(e164, phonenumbers.region_code_for_number(parsed) or "")


def is_region_code(text: str) -> bool:
    """Whether it is a country's two letters, such as IE."""
    try:
        import phonenumbers
    except ModuleNotFoundError as error:
        raise not_installed_error("phonenumbers") from error
    return text.upper() in phonenumbers.SUPPORTED_REGIONS
