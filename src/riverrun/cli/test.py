"""`riverrun test`: the project's own tests, run by pytest with the Python that runs riverrun."""

import importlib.util
import os
import signal
import subprocess
import sys

import click

from riverrun.cli.context import current_project
from riverrun.cli.output import say
from riverrun.errors import UsageError

_NO_TESTS = 5
_A_TEST = """There are no tests in {root}. A test is a function in a file named test_….py; `kafka` is a real broker:

  # test_meters.py
  import riverrun as rr

  def test_what_is_sent_is_read(kafka, kafka_topic):
      topic = kafka_topic(partitions=2)
      with rr.Producer(kafka.connection) as producer:
          producer.send(topic, {{"house_id": "h1"}}, key="h1")
      with rr.Consumer(topic, connection=kafka.connection, follow=False) as consumer:
          assert [record.value for record in consumer] == [{{"house_id": "h1"}}]"""


@click.command(
    epilog="Example: riverrun test -x -k overload",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
)
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def test(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run the project's tests with pytest, in the project's folder.

    All arguments are pytest's (paths are from the project's folder), and so is the exit code. riverrun brings fixtures: a
    real Kafka, topics of a test's own.
    """
    root = current_project().root
    if importlib.util.find_spec("pytest") is None:
        raise UsageError(
            "riverrun test needs pytest, and this Python does not have it",
            found=sys.executable,
            hint=f"Install it: {sys.executable} -m pip install pytest",
        )
    environ = dict(os.environ)
    chosen = ctx.obj or {}
    if chosen.get("profile"):
        environ["RIVERRUN_PROFILE"] = chosen["profile"]
    code = _run([sys.executable, "-m", "pytest", *arguments], str(root), environ)
    if code == _NO_TESTS and not arguments:
        say(_A_TEST.format(root=root))
    ctx.exit(code)


def _run(command: list[str], folder: str, environ: dict[str, str]) -> int:
    """The child's exit code. Ctrl-C is for the child, which has the same terminal and handles it itself."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        code = subprocess.run(command, cwd=folder, env=environ, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    # As a shell reports it, when a signal ended the child.
    return code if code >= 0 else 128 - code
