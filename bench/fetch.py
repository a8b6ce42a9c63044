"""How long a fetch of the kafka set takes: cold from the repository, cold from a server that is far away, warm.

    .venv/bin/python bench/fetch.py [RUNS]

Far away is a server on loopback that waits 50 ms before each answer, as one on another continent does; it shows what
`artifacts.parallel` is for. Warm is what every `riverrun up` pays: all bytes are read and hashed.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from riverrun.artifacts import cache_folder, fetch_set
from riverrun.config import ArtifactSettings

DELAY_SECONDS = 0.05


class FarAway(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(DELAY_SECONDS)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def cold(parallel: int, url: str = "") -> float:
    """Seconds to fill an empty cache, for a user without ~/.m2."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "HOME": folder}
        settings = ArtifactSettings(cache_dir=str(Path(folder, "cache")), parallel=parallel, maven_url=url)
        return fetch_set("kafka", settings, environ=environ).seconds


def show(what: str, seconds: list[float], size: int) -> None:
    middle = statistics.median(seconds)
    print(f"{what:<34} {middle:7.3f} s  {size / 1e6 / middle:7.0f} MB/s   ({min(seconds):.3f} to {max(seconds):.3f})")


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    first = fetch_set("kafka", ArtifactSettings())
    for parallel in (1, 8):
        show(f"cold, repository, parallel {parallel}", [cold(parallel) for _ in range(runs)], first.size)
    folder = cache_folder(ArtifactSettings()) / "maven"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(FarAway, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for parallel in (1, 2, 4, 8, 16):
        show(f"cold, far away, parallel {parallel}", [cold(parallel, url) for _ in range(runs)], first.size)
    server.shutdown()
    warm = [fetch_set("kafka", ArtifactSettings()).seconds for _ in range(10 * runs)]
    show("warm, all bytes hashed", warm, first.size)


if __name__ == "__main__":
    main()
