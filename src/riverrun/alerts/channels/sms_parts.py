"""Computes how many parts an SMS has: what networks charge for, and what a daily budget counts.

A part is 140 octets: 160 characters of the GSM alphabet (3GPP TS 23.038) at seven bits each, or 70 of UTF-16. A text that
needs several parts uses six octets of each for the header that joins them: 153 or 67 remain. Some characters of the GSM
alphabet take two units, as do those of UTF-16 beyond the first plane, and neither is split across parts.
"""

from dataclasses import dataclass
from typing import Literal

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = frozenset("\f^{}\\[~]|€")
# Size of a single part, and of one of several.
_PART_SIZES = {"GSM-7": (160, 153), "UCS-2": (70, 67)}


@dataclass(frozen=True)
class SmsParts:
    encoding: Literal["GSM-7", "UCS-2"]
    count: int
    # In units of the encoding, not characters.
    length: int


def compute_sms_parts(text: str) -> SmsParts:
    """The parts needed to send a text. An empty text is one part too."""
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
