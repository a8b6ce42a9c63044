"""A fingerprint of what was read of a file: identifies it after a restart, a rename, or when it was replaced.

An inode alone is not enough (they are reused, and copytruncate keeps it), nor are the first bytes (logs may all begin
alike): so the fingerprint has both ends of what was read.
"""

import hashlib
import os

import msgspec

HEAD_BYTES = 1024
TAIL_BYTES = 256


class FileFingerprint(msgspec.Struct, frozen=True):
    """The first bytes of a file, up to HEAD_BYTES, and the last ones before an offset, up to TAIL_BYTES, as hashes."""

    head: str
    head_bytes: int
    tail: str
    tail_bytes: int


def fingerprint_of(fd: int, offset: int) -> FileFingerprint:
    """Of a file that was read up to `offset`. The head may go beyond it: those bytes do not change while a file grows."""
    head, tail = min(HEAD_BYTES, os.fstat(fd).st_size), min(TAIL_BYTES, offset)
    return FileFingerprint(_hash(fd, 0, head), head, _hash(fd, offset - tail, tail), tail)


def matches_fingerprint(fd: int, offset: int, fingerprint: FileFingerprint) -> bool:
    """Whether this is the file, or a copy of it that has everything that was read."""
    return (
        matches_head(fd, fingerprint)
        and _hash(fd, offset - fingerprint.tail_bytes, fingerprint.tail_bytes) == fingerprint.tail
    )


def matches_head(fd: int, fingerprint: FileFingerprint) -> bool:
    """Whether it has the same first bytes."""
    return _hash(fd, 0, fingerprint.head_bytes) == fingerprint.head


def _hash(fd: int, offset: int, count: int) -> str:
    if count == 0:
        return ""
    data = os.pread(fd, count, offset)
    return hashlib.sha256(data).hexdigest()[:32] if len(data) == count else "short"
