"""A finger print of what was read of a file: how it is known again after a restart, a rename, or when it was replaced.

An inode alone is not enough (they are used again, and copytruncate keeps it), nor are the first bytes (logs may all begin
alike): so both ends of what was read are kept.
"""

import hashlib
import os

import msgspec

HEAD = 1024
FOOT = 256


class Print(msgspec.Struct, frozen=True):
    """The first bytes of a file, up to HEAD, and the last ones before an offset, up to FOOT, as hashes."""

    head: str
    head_bytes: int
    foot: str
    foot_bytes: int


def print_of(fd: int, offset: int) -> Print:
    """Of a file that was read up to `offset`. The head may go beyond it: what is there stays there while a file grows."""
    head, foot = min(HEAD, os.fstat(fd).st_size), min(FOOT, offset)
    return Print(_hash(fd, 0, head), head, _hash(fd, offset - foot, foot), foot)


def fits(fd: int, offset: int, known: Print) -> bool:
    """Whether this is the file, or a copy of it that has all that was read."""
    return begins_as(fd, known) and _hash(fd, offset - known.foot_bytes, known.foot_bytes) == known.foot


def begins_as(fd: int, known: Print) -> bool:
    """Whether it begins as that file did."""
    return _hash(fd, 0, known.head_bytes) == known.head


def _hash(fd: int, offset: int, count: int) -> str:
    if count == 0:
        return ""
    data = os.pread(fd, count, offset)
    return hashlib.sha256(data).hexdigest()[:32] if len(data) == count else "short"
