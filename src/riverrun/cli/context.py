"""What every command starts from: the project and its settings, after the global flags."""

from pathlib import Path
from typing import Any

import click

from riverrun.config import Loaded, find_project, load


def loaded(**flags: Any) -> Loaded:
    """Settings of the project this command was called for. Keywords are flags: `kafka__port=9092`; None is not given."""
    chosen: dict[str, Any] = click.get_current_context().obj or {}
    folder = chosen.get("project_dir")
    project = find_project(Path(folder)) if folder else find_project()
    return load(
        project,
        flags={name.replace("__", "."): value for name, value in flags.items()},
        profile=chosen.get("profile", ""),
    )
