"""A request to replay a stream: what can be checked, finished or cancelled without Spark."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riverrun.app import App
from riverrun.config import Project, Settings
from riverrun.config.stream_state import replay_command
from riverrun.errors import UsageError
from riverrun.kafka.admin.admin import Admin
from riverrun.model.positions import EARLIEST, OffsetSpec, parse_offset_spec
from riverrun.model.suggest import nearest
from riverrun.streams.checkpoint import read_checkpoint_status
from riverrun.streams.checkpoint_files import local_folder
from riverrun.streams.evolve.cutover import ReplayFolder, delete_replay_group, read_replay_state
from riverrun.streams.generations import Generation, checkpoint_name, checkpoint_path
from riverrun.streams.pipeline import checkpoints_location, replay_group, streams_folder


@dataclass(frozen=True)
class ReplayRequest:
    """The stream to replay, and from where, as far as this is known without Spark."""

    app: App
    stream: str
    requested_from: str
    position: OffsetSpec
    replay: ReplayFolder
    checkpoints: str

    @property
    def command(self) -> str:
        """The command that goes on with the replay, as it can be typed here."""
        return replay_command(self.app.file, self.stream)

    @property
    def live_checkpoint(self) -> Path:
        return Path(checkpoint_path(self.checkpoints, self.replay.stream_folder))

    @property
    def state(self) -> dict[str, Any]:
        return read_replay_state(self.replay)

    def check(self) -> None:
        """UsageError if the stream never ran, so that there is nothing to replay; raised before Spark is started."""
        if not self.state and read_checkpoint_status(self.live_checkpoint, self.stream) is None:
            raise UsageError(
                f"There is nothing to replay: {self.stream} has not finished a batch yet",
                hint="Let it run first, near real time: a batch computes everything anew each time it is run",
                stream=self.stream,
            )


def make_replay_request(
    app: App, settings: Settings, project: Project, stream: str, requested_from: str
) -> ReplayRequest:
    """Make a request, and check what can be checked before anything is started."""
    if stream not in app.streams:
        suggestion = nearest(stream, app.streams)
        raise UsageError(
            f"The app {app.name} has no stream {stream}",
            expected=", ".join(app.streams),
            hint=f"Did you mean {suggestion}?" if suggestion else "",
            stream=stream,
        )
    checkpoints = local_folder(location := checkpoints_location(settings, project, app))
    if checkpoints is None:
        raise UsageError(
            "A replay needs checkpoints in a folder of this machine",
            found=f"streams.checkpoints = {location}",
            hint=f"A mounted folder does; or `riverrun run FILE --fresh {stream}`, which sends all its rows again",
            stream=stream,
        )
    position = parse_offset_spec(requested_from, what="--from") if requested_from else EARLIEST
    return ReplayRequest(
        app, stream, requested_from, position, ReplayFolder(streams_folder(project, app) / stream), str(checkpoints)
    )


def finish_swap(request: ReplayRequest, admin: Admin) -> Generation | None:
    """Finish a swap that an earlier process has begun; None when there is none. Needs the replay's lock."""
    return request.replay.finish_swap(admin, replay_group(request.app, request.stream))


def cancel_replay(request: ReplayRequest, admin: Admin) -> str:
    """Remove an unfinished replay, and return its topic. Needs the replay's lock. The stream itself is not touched."""
    state = request.state
    if request.replay.swap.exists():
        raise UsageError(
            f"The replay of {request.stream} is being swapped in already",
            hint=f"Finish that with `{request.command}` or `riverrun run`",
            stream=request.stream,
        )
    if not state:
        raise UsageError(f"There is no replay of {request.stream} to cancel", stream=request.stream)
    request.replay.request.unlink(missing_ok=True)
    request.replay.withdraw_answer()
    topic = str(state["topic"])
    if admin.topics([topic], config=False):
        admin.delete_topics([topic])
    delete_replay_group(admin, replay_group(request.app, request.stream))
    shutil.rmtree(Path(request.checkpoints) / checkpoint_name(request.stream, int(state["number"])), ignore_errors=True)
    request.replay.remove()
    return topic
