"""The pipeline file: an `App` collects what it declares, and `load_app` reads the file."""

import importlib.util
import sys
import traceback
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from riverrun.errors import DeclarationError, RiverrunError
from riverrun.model.event import Event
from riverrun.model.topic import Topic

if TYPE_CHECKING:
    from riverrun.kafka.admin.topics import Changes
    from riverrun.kafka.connection import Connection

E = TypeVar("E", bound=Event)


class App:
    """A pipeline: declare topics in it; riverrun makes and checks them. Declaring does nothing but remember."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topics: dict[str, Topic[Event]] = {}

    def topic(
        self,
        name: str,
        event: type[E] | None = None,
        *,
        partitions: int = 1,
        replicas: int = 0,
        retention: str | timedelta | None = None,
        retention_size: str | int | None = None,
        compact: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> Topic[E]:
        """Declare a topic once; see `Topic` for what the arguments mean."""
        if name in self.topics:
            raise DeclarationError(
                f"The topic {name} is declared twice in the app {self.name}",
                hint="Declare it once and use what app.topic() returns",
                topic=name,
            )
        topic = Topic(name, event, partitions, replicas, retention, retention_size, compact, dict(config or {}))
        self.topics[name] = topic
        return topic

    def apply(self, connection: "Connection | str | None" = None, *, more_partitions: bool = False) -> "list[Changes]":
        """Make the cluster's topics what is declared here: create, change what is safe, refuse the rest before anything is
        changed. `more_partitions` allows adding partitions, which moves keys. Gives what was done, topic by topic."""
        from riverrun.kafka.admin.admin import Admin
        from riverrun.kafka.admin.topics import apply_topics
        from riverrun.kafka.connection import connection_of

        topics = list(self.topics.values())
        return apply_topics(Admin(connection_of(connection)), topics, allow_more_partitions=more_partitions)


def load_app(path: Path) -> App:
    """Run the pipeline file and give its app. Problems name the file and the line, whoever made them."""
    path = path.resolve()
    if not path.is_file():
        raise DeclarationError(
            f"There is no pipeline file {path}", hint="Give its path, or run `riverrun init`", file=path
        )
    module_name = f"riverrun_app_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(f"{path.name} is not a Python file", expected="a name that ends in .py", file=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise DeclarationError(f"{path.name}:{error.lineno}: this is not Python: {error.msg}", file=path) from error
    except RiverrunError as error:
        raise DeclarationError(f"{_place(path, error)}: {error.what}", expected=error.expected, found=error.found,
                               hint=error.hint, **error.fields) from error  # fmt: skip
    except Exception as error:
        raise DeclarationError(
            f"{_place(path, error)}: {type(error).__name__}: {error}",
            hint="The file raised this while it was read",
            file=path,
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    apps = [value for value in vars(module).values() if isinstance(value, App)]
    if len(apps) != 1:
        raise DeclarationError(
            f"{path.name} has {'no' if not apps else len(apps)} riverrun.App",
            expected='exactly one, such as app = riverrun.App("meters")',
            file=path,
        )
    return apps[0]


def _place(path: Path, error: BaseException) -> str:
    """The line of the user's file that led to the error: the last of its frames."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)]
    return f"{path.name}:{frames[-1].lineno}" if frames else path.name
