"""The password for others, made by riverrun when it is first needed.

What is kept is a scrypt hash, in `.riverrun/login.json`, and that is all the server ever reads. The password itself stands
in `.riverrun/login-password.txt` for whoever set this up to read, and may be deleted then. Both are for their user alone.
Without login.json, the next start makes a new one.
"""

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from riverrun.config.private_files import write_private
from riverrun.errors import DataDirectoryError

# 2**15: 0.13 s and 32 MiB for a try, where the tests run. More would help nobody against 120 random bits.
SCRYPT_COST, SCRYPT_BLOCK, SCRYPT_PARALLELISM = 2**15, 8, 1
MAX_MEMORY = 64 * 1024 * 1024
# No letters that look like others.
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
GROUP_COUNT, GROUP_LENGTH = 4, 6
HASH_FILE, TEXT_FILE = "login.json", "login-password.txt"


@dataclass(frozen=True)
class Password:
    """A password that can be compared with and not be read. `created_file` is the file when it has just been made."""

    salt: bytes
    hashed: bytes
    created_file: Path | None = None

    @classmethod
    def of(cls, text: str, created_file: Path | None = None) -> Self:
        salt = secrets.token_bytes(16)
        return cls(salt, _scrypt(text, salt), created_file)

    def matches(self, text: str) -> bool:
        """Takes a while, on purpose."""
        return hmac.compare_digest(_scrypt(text, self.salt), self.hashed)

    def __repr__(self) -> str:
        return "Password(…)"


def project_password(home: Path) -> Password:
    """The password of a project, made now where there is none."""
    path = home / HASH_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["scrypt"] != [SCRYPT_COST, SCRYPT_BLOCK, SCRYPT_PARALLELISM]:
            raise ValueError("other costs")
        return Password(base64.b64decode(content["salt"]), base64.b64decode(content["hash"]))
    except FileNotFoundError:
        return _create_password(home)
    except OSError as error:
        raise DataDirectoryError(
            f"The password's file {path} cannot be read: {error.strerror}", hint="Check its rights", path=path
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryError(
            f"The password's file {path} is damaged", hint="Delete it; the next start makes a new password", path=path
        ) from error


def _create_password(home: Path) -> Password:
    text = "-".join("".join(secrets.choice(ALPHABET) for _ in range(GROUP_LENGTH)) for _ in range(GROUP_COUNT))
    password = Password.of(text, home / TEXT_FILE)
    content = {
        "scrypt": [SCRYPT_COST, SCRYPT_BLOCK, SCRYPT_PARALLELISM],
        "salt": base64.b64encode(password.salt).decode(),
        "hash": base64.b64encode(password.hashed).decode(),
    }
    try:
        home.mkdir(parents=True, exist_ok=True)
        # The text first: a hash whose password nobody has would lock everybody out.
        write_private(home / TEXT_FILE, f"{text}\n")
        write_private(home / HASH_FILE, json.dumps(content))
    except OSError as error:
        raise DataDirectoryError(
            f"A password cannot be kept in {home}: {error.strerror}", hint="Check the rights of that folder", path=home
        ) from error
    return password


def _scrypt(text: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        text.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=SCRYPT_COST,
        r=SCRYPT_BLOCK,
        p=SCRYPT_PARALLELISM,
        maxmem=MAX_MEMORY,
    )
