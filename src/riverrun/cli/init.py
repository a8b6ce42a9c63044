"""`riverrun init`: the files a project begins with."""

import shlex
from pathlib import Path

import click

from riverrun.cli.output import json_option, print_json, say
from riverrun.errors import UsageError

APP = '''"""A first app: what an event is, and the topic it goes to."""

from datetime import datetime

import riverrun as rr

app = rr.App("{name}")


class Reading(rr.Event):
    house_id: str = rr.key()
    load_kw: float = rr.field(ge=0)
    at: datetime = rr.event_time(late="2 minutes")


readings = app.topic("readings", Reading, partitions=2, retention="7 days")
'''
NEXT = """Next:
  {cd}riverrun up --detach
  riverrun topics apply
  echo '{{"house_id": "h1", "load_kw": 1.5, "at": "2026-07-01T10:00:00Z"}}' | riverrun produce readings
  riverrun consume readings --table"""


@click.command(epilog="Example: riverrun init meters && cd meters && riverrun up --detach")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@json_option
def init(directory: Path, as_json: bool) -> None:
    """Make a project in DIRECTORY (here, by default): riverrun.toml, a first app.py, and a line in .gitignore.

    Overwrites nothing: it refuses where one of the files is there already.
    """
    from riverrun.config.project import CONFIG_FILE
    from riverrun.config.sample import sample_file

    files = {
        directory / CONFIG_FILE: sample_file("app.py"),
        directory / "app.py": APP.format(name=_app_name(directory)),
    }
    there = [str(path) for path in files if path.exists()]
    if there:
        raise UsageError(
            f"There is a project in {directory.resolve()} already",
            found=", ".join(there),
            hint="Nothing was written. Choose another folder, or take what you need from `riverrun config sample`",
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        written = [*files, *_ignore(directory / ".gitignore")]
    except OSError as error:
        raise UsageError(f"{error.filename or directory} cannot be written: {error.strerror}") from error
    if as_json:
        print_json({"project": str(directory.resolve()), "files": [str(path) for path in written]})
        return
    for path in written:
        say(f"wrote {path}")
    say(NEXT.format(cd="" if directory == Path() else f"cd {shlex.quote(str(directory))} && "))


def _app_name(directory: Path) -> str:
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in directory.resolve().name)
    return name.strip("-") or "app"


def _ignore(path: Path) -> list[Path]:
    """Keep what riverrun makes out of the repository; what is in the file stays."""
    from riverrun.config.project import STATE_FOLDER

    line = f"{STATE_FOLDER}/"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if line in text.splitlines():
        return []
    gap = "" if not text or text.endswith("\n") else "\n"
    path.write_text(f"{text}{gap}{line}\n", encoding="utf-8")
    return [path]
