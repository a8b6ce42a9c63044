"""What a server uses, and rows about servers for `riverrun status` and the display of `riverrun up`."""

import time
from typing import Any

from riverrun.config.run_state import RunState, ServerState


def resident_mb(pid: int) -> int | None:
    """Resident memory of a process in MiB; None when there is no such process."""
    import psutil

    if not pid:
        return None
    try:
        return int(psutil.Process(pid).memory_info().rss) >> 20
    except psutil.Error:
        return None


def server_row(server: ServerState, now: float | None = None) -> dict[str, Any]:
    """One server for programs: what `riverrun status --json` prints."""
    runs = bool(server.pid)
    return {
        "name": server.name,
        "kind": server.kind,
        "state": server.state,
        "pid": server.pid or None,
        "address": server.address,
        "uptime_seconds": round((now or time.time()) - server.started_at, 1) if runs and server.started_at else None,
        "memory_mb": resident_mb(server.pid),
        "restarts": server.restarts,
        "log": server.log,
        "detail": server.detail,
        "last_exit": server.last_exit,
    }


def display_row(row: dict[str, Any]) -> dict[str, Any]:
    """The same for people, in a line that fits a screen."""
    return {
        "server": row["name"],
        "state": row["state"],
        "address": row["address"],
        "pid": str(row["pid"] or ""),
        "uptime": uptime_text(row["uptime_seconds"]),
        "memory": f"{row['memory_mb']} MiB" if row["memory_mb"] is not None else "",
        "restarts": row["restarts"],
    }


def uptime_text(seconds: float | None) -> str:
    """4.2 s, 3 min 05 s, 2 h 07 min, 3 d 04 h."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def state_rows(state: RunState) -> list[dict[str, Any]]:
    return [server_row(server) for server in state.servers]
