"""What is to be replayed, as far as it can be told, and undone, without Spark."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riverrun.app import App
from riverrun.config import Project, Settings
from riverrun.errors import UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.model.near import nearest
from riverrun.model.when import EARLIEST, Position, parse_position
from riverrun.streams.checkpoint import read_stand
from riverrun.streams.generations import Generation, checkpoint_name, checkpoint_of
from riverrun.streams.handover import ReplayFolder, forget_replay, read_state
from riverrun.streams.pipeline import checkpoints_of, replay_group, streams_folder
from riverrun.streams.remote_files import local_folder


@dataclass(frozen=True)
class Wish:
    """What is to be replayed, as far as it can be told without Spark."""

    app: App
    stream: str
    asked: str
    position: Position
    replay: ReplayFolder
    checkpoints: str

    @property
    def live_checkpoint(self) -> Path:
        return Path(checkpoint_of(self.checkpoints, self.replay.stream))

    @property
    def state(self) -> dict[str, Any]:
        return read_state(self.replay)

    def check(self) -> None:
        """A stream that never ran has nothing to replay: said before Spark is started."""
        if not self.state and read_stand(self.live_checkpoint, self.stream) is None:
            raise UsageError(
                f"There is nothing to replay: {self.stream} has not finished a batch yet",
                hint="Let it run first, near real time: a batch computes everything anew each time it is run",
                stream=self.stream,
            )


def wish_of(app: App, settings: Settings, project: Project, stream: str, asked: str) -> Wish:
    """Check what can be checked before anything is started."""
    if stream not in app.streams:
        near = nearest(stream, app.streams)
        raise UsageError(
            f"The app {app.name} has no stream {stream}",
            expected=", ".join(app.streams),
            hint=f"Did you mean {near}?" if near else "",
            stream=stream,
        )
    checkpoints = local_folder(place := checkpoints_of(settings, project, app))
    if checkpoints is None:
        raise UsageError(
            "A replay needs checkpoints in a folder of this machine",
            found=f"streams.checkpoints = {place}",
            hint=f"A mounted folder does; or `riverrun run FILE --fresh {stream}`, which sends all its rows again",
            stream=stream,
        )
    position = parse_position(asked, what="--from") if asked else EARLIEST
    return Wish(app, stream, asked, position, ReplayFolder(streams_folder(project, app) / stream), str(checkpoints))


def finish_swap(wish: Wish, admin: Admin) -> Generation | None:
    """What is left of a swap that an earlier process has begun; None when there is none. Needs the replay's lock."""
    return wish.replay.finish(admin, replay_group(wish.app, wish.stream))


def cancel(wish: Wish, admin: Admin) -> str:
    """Remove a replay that is not finished; its topic. Needs the replay's lock. The stream itself is not touched."""
    state = wish.state
    if wish.replay.swap.exists():
        raise UsageError(
            f"The replay of {wish.stream} is being swapped in already",
            hint="Finish that with `riverrun replay` or `riverrun run`",
            stream=wish.stream,
        )
    if not state:
        raise UsageError(f"There is no replay of {wish.stream} to cancel", stream=wish.stream)
    wish.replay.request.unlink(missing_ok=True)
    wish.replay.take_back()
    topic = str(state["topic"])
    if admin.topics([topic], config=False):
        admin.delete_topics([topic])
    forget_replay(admin, replay_group(wish.app, wish.stream))
    shutil.rmtree(Path(wish.checkpoints) / checkpoint_name(wish.stream, int(state["number"])), ignore_errors=True)
    wish.replay.remove()
    return topic
