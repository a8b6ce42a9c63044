"""Sends the user's own modules to Spark's Python workers.

A worker is another process, perhaps on another machine: it cannot import the pipeline file, a test or a file beside them.
So the code of such modules is sent along with the functions that use it, instead of their names.
"""

import hashlib
import sys
from pathlib import Path
from types import ModuleType

from riverrun.app import App


def pickle_user_modules(app: App) -> None:
    """Register the modules in the app's folders with cloudpickle, so that workers get their code and not only their
    names."""
    from pyspark import cloudpickle

    for module in _modules(app):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def code_digest(app: App) -> str:
    """A digest of the pipeline file and the user's modules on disk; it changes when any of them does."""
    files = {Path(str(module.__file__)) for module in _modules(app)} | ({app.path} if app.path else set())
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file).encode() + b"\0")
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _modules(app: App) -> list[ModuleType]:
    folders = {Path(line.file).resolve().parent for line in app.declared_at.values()}
    return [module for module in list(sys.modules.values()) if _is_in(module, folders)]


def _is_in(module: ModuleType, folders: set[Path]) -> bool:
    file = getattr(module, "__file__", None)
    if (
        not isinstance(file, str)
        or module.__name__ not in sys.modules
        or module.__name__.partition(".")[0] == "riverrun"
    ):
        return False
    path = Path(file).resolve()
    # A virtual environment may be in the project's folder; workers have the packages installed there.
    installed = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve() / "lib")
    return not folders.isdisjoint(path.parents) and not any(folder in path.parents for folder in installed)
