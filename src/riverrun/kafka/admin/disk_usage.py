"""How large topics are on disk, for the cluster riverrun runs: the client library cannot ask brokers for it."""

import re
from collections import defaultdict
from pathlib import Path

from riverrun.config import LoadedSettings
from riverrun.config.run_state import running_state

_PARTITION = re.compile(r"(.+)-(\d+)")


def topic_sizes(loaded: LoadedSettings) -> dict[str, int] | None:
    """Bytes of records on disk by topic, all copies counted; None for a cluster that runs elsewhere."""
    state = running_state(loaded.project)
    if state is None or state.bootstrap_servers != loaded.settings.kafka.bootstrap_servers:
        return None
    return topic_sizes_in(loaded.project.data)


def topic_sizes_in(data: Path) -> dict[str, int]:
    """The sizes of all topics in the brokers' folders below `data`."""
    sizes: dict[str, int] = defaultdict(int)
    for meta_file in data.rglob("meta.properties"):
        for folder in meta_file.parent.iterdir():
            if (match := _PARTITION.fullmatch(folder.name)) and folder.is_dir():
                sizes[match[1]] += sum(_size(segment) for segment in folder.glob("*.log"))
    return dict(sizes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        # Retention removed the segment since it was listed.
        return 0
