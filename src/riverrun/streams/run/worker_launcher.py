"""The Python that Spark starts its workers with on this machine: a small script that becomes the real one.

Spark puts its own pyspark.zip before the installed package. There is no bytecode in that archive, so every worker
compiles PySpark again, which is four fifths of its start. And the worker in which the driver asks a `transformWithState`
class for its state has ten seconds to connect, which no setting changes (`PythonWorkerFactory.createSimpleWorker`): on a
slow or busy machine importing PySpark took longer than that, at every restart. Here it connects first and imports then; for
what follows Spark waits five minutes.

On a cluster the workers' Python is a path on their machines, which our script cannot replace. There the driver's worker
finds a `sitecustomize` on the driver's own PYTHONPATH (`driver_path`) that connects as early.
"""

import os
import shlex
from pathlib import Path

# Runs before any import that is not needed, so that the worker connects as soon as possible.
_CONNECT = '''\
"""Made by riverrun (streams/run/worker_launcher.py): starts one of Spark's Python workers."""

import os
import sys

DRIVER_WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"


def connect():
    """A connection to Spark that has said who we are, as PySpark would make it."""
    import socket

    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "").lower() == "true" else "127.0.0.1"
    patience = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", 15))
    connection = socket.create_connection((host, int(os.environ["PYTHON_WORKER_FACTORY_PORT"])), timeout=patience)
    file = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", 65536)))
    file.write(len(secret).to_bytes(4, "big") + secret)
    file.flush()
    answer = file.read(int.from_bytes(file.read(4), "big"))
    if answer != b"ok":
        raise RuntimeError(f"Spark does not know this worker: {answer!r}")
    return file, connection


def installed(path):
    """The path without the archives of PySpark and Py4J whose installed packages are on it as well."""
    folders = {os.path.realpath(each) for each in path}

    def doubled(entry):
        folder, name = os.path.split(entry)
        package = os.path.realpath(os.path.join(folder, "..", ".."))
        home = os.path.dirname(package)
        archive = name == "pyspark.zip" or (name.startswith("py4j-") and name.endswith(".zip"))
        there = os.path.exists(os.path.join(package, "__init__.py")) and os.path.isdir(os.path.join(home, "py4j"))
        return archive and there and home in folders

    return [each for each in path if not doubled(each)]
'''

_LAUNCHER = """

module = sys.argv[2]
made = connect() if module == DRIVER_WORKER and "PYTHON_WORKER_FACTORY_PORT" in os.environ else None
# As `python -m` has it: the working folder comes first, not the folder of this file.
sys.path[:] = installed([os.getcwd(), *sys.path[1:]])
if made is not None:
    import pyspark.worker_util

    pyspark.worker_util.local_connect_and_auth = lambda *_: made

import runpy

sys.argv[1:] = sys.argv[3:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""

# Python imports `sitecustomize` before the module that it was asked to run.
_SITE = """

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
if DRIVER_WORKER in sys.orig_argv and "PYTHON_WORKER_FACTORY_PORT" in os.environ:
    made = connect()
    sys.path[:] = installed(sys.path)
    import pyspark.worker_util

    pyspark.worker_util.local_connect_and_auth = lambda *_: made

# The one that this Python has of its own.
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

own = PathFinder.find_spec("sitecustomize", sys.path)
if own is not None and own.loader is not None:
    own.loader.exec_module(module_from_spec(own))
"""


def driver_path(folder: Path) -> str:
    """PYTHONPATH for a Spark whose workers are elsewhere; writes the `sitecustomize` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "sitecustomize.py", _CONNECT + _SITE, 0o644)
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))


def write_worker_launcher(folder: Path, python: str) -> Path:
    """The script by which `python` starts Spark's workers; written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    start, script = folder / "start_worker.py", folder / "python"
    _replace(start, _CONNECT + _LAUNCHER, 0o644)
    # Spark also calls it for its version and packages.
    _replace(
        script,
        f"""#!/bin/sh
[ "$1" = -m ] && exec {shlex.quote(python)} {shlex.quote(str(start))} "$@"
exec {shlex.quote(python)} "$@"
""",
        0o755,
    )
    return script


def _replace(file: Path, text: str, mode: int) -> None:
    """Write a file atomically: another session of the project may be starting a worker."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(mode)
    temporary.replace(file)
