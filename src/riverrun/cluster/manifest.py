"""What a server's data was created with, kept beside it as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from riverrun.cluster.home import folder_error
from riverrun.errors import DataDirectoryError


@dataclass
class ServerManifest:
    """Base of the manifests: dataclasses whose fields are the file's."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The manifest; None when there is none yet."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise DataDirectoryError(
                f"{path}, which says what the data beside it is made for, cannot be read: {error}",
                hint="Put it back, or delete all data with `riverrun down --delete-data`",
                path=path,
            ) from error

    def write(self, path: Path) -> None:
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise folder_error(error, path.parent) from error
