"""The pipeline picture, live: looked at once a second for all who look on, and not at all while nobody does."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from riverrun.dash.broadcast import Broadcast
from riverrun.dash.picture.details import Choice, Details
from riverrun.dash.picture.figures import Figures, Seen
from riverrun.model.shape import Shape

LOOK_SECONDS = 1.0
# What a page is told of the pipeline.
_ABOUT = ("state", "file", "started_at", "ended_at", "detail")


class Looking(Protocol):
    """What a picture is drawn from; both are called in a thread, one at a time."""

    def look(self, topics: Sequence[str]) -> Seen: ...

    def shape(self) -> tuple[Shape | None, bool]: ...

    def close(self) -> None: ...


class Picture(Broadcast):
    """The picture of one app's pipeline. Used in one event loop; `declared` is what the pipeline file says, where there is
    one, and `viewers` gives how many look at each dashboard."""

    def __init__(
        self,
        app: str,
        source: Looking,
        details: Details,
        *,
        declared: Shape | None = None,
        viewers: Callable[[], Mapping[str, int]] = dict,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        super().__init__("picture")
        self.app = app
        self.shape = declared or Shape()
        self._source = source
        self._details = details
        self._declared = declared
        self._dashboard_viewers = viewers
        self._look_seconds = look_seconds
        self._figures = Figures()

    # --- live ---

    async def _look(self) -> dict[str, Any]:
        viewers = dict(self._dashboard_viewers())
        run = asyncio.get_running_loop().run_in_executor
        shape, seen = await run(self._looker, self._look_at_all)
        self.shape = shape
        about = {name: seen.pipeline.get(name, "") for name in _ABOUT} if seen.pipeline is not None else None
        return {
            "app": self.app,
            "shape": shape.as_dict(),
            "pipeline": about,
            "troubles": list(seen.troubles),
            "nodes": self._figures.of(shape, seen, viewers),
        }

    def _look_at_all(self) -> tuple[Shape, Seen]:
        ran, runs = self._source.shape()
        # What runs is shown as it runs; else what the file says now, and without one what ran last.
        shape = (ran if runs and ran is not None else self._declared or ran) or Shape()
        return shape, self._source.look(shape.names("topic"))

    def _difference(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
        return difference(before, now)

    async def _rest(self, took: float) -> None:
        await asyncio.sleep(max(0.05, self._look_seconds - took))

    # --- details ---

    async def of(self, kind: str, name: str) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.of(shape, kind, name))

    async def records(self, topic: str, count: int) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.records(shape, topic, count))

    async def dead(self, topic: str, reason: str) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.dead(shape, topic, reason))

    async def redrive(self, topic: str, choice: Choice, *, dry_run: bool) -> dict[str, Any]:
        shape = await self._known_shape()
        return await self._work(lambda: self._details.redrive(shape, topic, choice, dry_run=dry_run))

    async def _known_shape(self) -> Shape:
        if not self.seen.is_set():
            await self.refresh()
            if not self._viewers:
                self.seen.clear()
        return self.shape

    def close(self) -> None:
        super().close()
        self._source.close()


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What a page has to be told: of nodes, the figures that changed; a figure that is gone is None."""
    change = {name: value for name, value in now.items() if name != "nodes" and before.get(name) != value}
    old: Mapping[str, Mapping[str, Any]] = before.get("nodes", {})
    nodes = {}
    for id_, figures in now["nodes"].items():
        known = old.get(id_, {})
        fresh = {name: value for name, value in figures.items() if known.get(name, ...) != value}
        fresh |= {name: None for name in known if name not in figures}
        if fresh:
            nodes[id_] = fresh
    if nodes:
        change["nodes"] = nodes
    return change
