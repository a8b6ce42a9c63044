"""A store that another process serves, over its HTTP API: the same questions, the same answers, the same errors."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import httpx

from riverrun import errors
from riverrun.errors import RiverrunError, StoreError, StoreUnavailableError
from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import DEFAULT_ROWS, Answer, Limits, Standing
from riverrun.store.formats import dicts

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from riverrun.config.serve_state import Serving

# An answer may take its own time, and this much on the way.
MORE_SECONDS = 30.0


class Rows:
    """The rows of an answer: as dicts when iterated, as Arrow, pandas or polars when asked for. `more`: the limit cut
    them."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.more = answer.more
        self.seconds = answer.seconds

    def arrow(self) -> "pa.Table":
        return self._answer.rows

    def pandas(self) -> Any:
        """A pandas.DataFrame."""
        return self._answer.rows.to_pandas()

    def polars(self) -> "pl.DataFrame":
        import polars as pl

        found = pl.from_arrow(self._answer.rows)
        assert isinstance(found, pl.DataFrame)  # noqa: S101  -- a table, not a column
        return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(dicts(self._answer.rows))

    def __len__(self) -> int:
        return int(self._answer.rows.num_rows)

    def __repr__(self) -> str:
        names = ", ".join(self._answer.rows.column_names)
        return f"<{len(self)} rows of {names}{', and there are more' if self.more else ''}>"


class StoreClient:
    """Asks a store at an address such as `http://127.0.0.1:8480`. May be used by many threads; close it, or use it in
    a `with`. `token` is what serve.json has where others must log in."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # The store is on this machine: a proxy for the world outside is not asked.
        self._client = httpx.Client(base_url=self.address, timeout=MORE_SECONDS, trust_env=False, headers=headers)

    @classmethod
    def of(cls, serving: "Serving") -> Self:
        """Asks the process that serves a project."""
        return cls(serving.address, serving.token)

    def ask(self, sql: str, limits: Limits = Limits(), *, name: str = "") -> Answer:  # noqa: B008
        """The answer to a question. `name` is what `cancel` knows it by."""
        try:
            import pyarrow as pa
        except ModuleNotFoundError as error:
            from riverrun.store.opening import not_installed

            raise not_installed(error) from error

        asked: dict[str, Any] = {"sql": sql, "limit": limits.rows, "seconds": limits.seconds, "format": "arrow"}
        if name:
            asked["name"] = name
        answer = self._call("POST", "/api/query", json=asked, timeout=limits.seconds + MORE_SECONDS)
        with pa.ipc.open_stream(answer.content) as reader:
            rows = reader.read_all()
        more = answer.headers.get("X-Riverrun-More") == "true"
        return Answer(rows, more, float(answer.headers.get("X-Riverrun-Seconds", 0)))

    @property
    def tables(self) -> dict[str, TableSpec]:
        """The tables there are, as far as a question needs to know them."""
        found = self._call("GET", "/api/tables").json()["tables"]
        return {each["name"]: _table(each) for each in found}

    def standing(self) -> list[Standing]:
        """Where every table stands."""
        return [_standing(each) for each in self._call("GET", "/api/tables").json()["tables"]]

    def describe(self, table: str) -> dict[str, Any]:
        """A table's columns and where it stands."""
        found: dict[str, Any] = self._call("GET", f"/api/tables/{quote(table, safe='')}").json()
        return found

    def remove(self, table: str) -> None:
        self._call("DELETE", f"/api/tables/{quote(table, safe='')}")

    def cancel(self, name: str) -> bool:
        """End a question that runs. False when none of that name runs."""
        try:
            self._call("DELETE", f"/api/query/{quote(name, safe='')}")
        except RiverrunError as error:
            if error.code == "QUERY_INVALID":
                return False
            raise
        return True

    def snapshot(self, path: Path, progressed: Callable[[int, int], None] = lambda *_: None) -> None:
        """Bring a copy of all tables, as they are at one moment, as a DuckDB file. `progressed` is told the bytes that have
        come, and how many there are."""
        part = path.with_name(f"{path.name}.part")
        try:
            # The copy is made before the first byte of it comes.
            with self._stream("POST", "/api/snapshot", json={}, timeout=None) as answer, part.open("wb") as file:
                whole = int(answer.headers.get("content-length", 0))
                for piece in answer.iter_bytes():
                    file.write(piece)
                    progressed(file.tell(), whole)
            part.replace(path)
        except OSError as error:
            raise StoreError(f"{path} cannot be written", found=error.strerror or str(error), path=str(path)) from error
        finally:
            part.unlink(missing_ok=True)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._stream(method, path, **options) as answer:
            answer.read()
            return answer

    @contextmanager
    def _stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """The answer, its body to be read; what the store raised is raised."""
        try:
            with self._client.stream(method, path, **options) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._refused(answer)
                yield answer
        except httpx.HTTPError as error:
            raise StoreUnavailableError(
                f"The store at {self.address} does not answer: {str(error) or type(error).__name__}",
                hint="Look whether `riverrun serve` still runs",
                address=self.address,
            ) from error

    def _refused(self, answer: httpx.Response) -> RiverrunError:
        try:
            return _error(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            return StoreError(f"The store at {self.address} answers {answer.status_code}", found=answer.text[:200])


def _error(told: Mapping[str, Any]) -> RiverrunError:
    """The error that the store raised, as it was there."""
    kinds = {
        each.code: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, StoreError)
    }
    kind = kinds.get(str(told["code"]), errors.UsageError if told["code"] == "USAGE" else StoreError)
    message, *lines = str(told["message"]).split("\n  ")
    fields = {name: value for name, value in dict(told.get("fields") or {}).items() if name.isidentifier()}
    known = {"what", "expected", "found", "hint", "lines"}
    return kind(
        message.removesuffix("."), lines=lines, **{key: value for key, value in fields.items() if key not in known}
    )


def _table(each: Mapping[str, Any]) -> TableSpec:
    columns = tuple(Column(one["name"], one["type"], (one["name"],)) for one in each["columns"])
    return TableSpec(each["name"], each["topic"], columns, tuple(each["key"]), each["upserts"], each["time"])


def _standing(each: Mapping[str, Any]) -> Standing:
    known = {name: each[name] for name in Standing.__dataclass_fields__ if name in each and name != "positions"}
    positions = {int(partition): offset for partition, offset in (each.get("positions") or {}).items()}
    return Standing(**{"rows": 0, **known, "table": each["name"]}, positions=positions)


def ask_project(project: Any, sql: str, *, rows: int = DEFAULT_ROWS, seconds: float = 30.0) -> Rows:
    """Ask the process that serves a project's store."""
    from riverrun.config.serve_state import require_serving

    with StoreClient.of(require_serving(project)) as client:
        return Rows(client.ask(sql, Limits(rows, seconds)))
