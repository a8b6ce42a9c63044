"""How many parts an SMS has: what networks charge by, and what a daily budget counts.

A part is 140 octets: 160 characters of the GSM alphabet (3GPP TS 23.038) at seven bits each, or 70 of UTF-16. A text that
needs several parts gives six octets of each to the note that puts them together: 153 or 67 remain. Some characters of the
GSM alphabet take two places, as do those of UTF-16 beyond the first plane, and neither is cut in two.
"""

from dataclasses import dataclass
from typing import Literal

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = frozenset("\f^{}\\[~]|€")
# Alone, and as one of several.
_PART_SIZES = {"GSM-7": (160, 153), "UCS-2": (70, 67)}


@dataclass(frozen=True)
class SmsParts:
    encoding: Literal["GSM-7", "UCS-2"]
    count: int
    # Places of the alphabet, not characters.
    length: int


def compute_sms_parts(text: str) -> SmsParts:
    """What it takes to send a text. An empty one is a part too."""
    gsm = all(character in _BASIC or character in _EXTENDED for character in text)
    encoding: Literal["GSM-7", "UCS-2"] = "GSM-7" if gsm else "UCS-2"
    sizes = [2 if (character in _EXTENDED if gsm else ord(character) > 0xFFFF) else 1 for character in text]
    alone, of_several = _PART_SIZES[encoding]
    length = sum(sizes)
    if length <= alone:
        return SmsParts(encoding, 1, length)
    count, used = 1, 0
    for size in sizes:
        if used + size > of_several:
            count, used = count + 1, 0
        used += size
    return SmsParts(encoding, count, length)
