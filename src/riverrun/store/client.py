"""Client for a store that another process serves over HTTP: same queries, same results, same errors as in that process."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import httpx

from riverrun import errors
from riverrun.errors import RiverrunError, StoreError, StoreUnavailableError
from riverrun.model.table import Column, TableSpec
from riverrun.store.contract import DEFAULT_ROWS, QueryLimits, QueryResult, TableStatus
from riverrun.store.formats import to_dicts

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from riverrun.config.serve_state import StoreEndpoint

# A query may take its own time limit, plus this much for the network.
RESPONSE_GRACE_SECONDS = 30.0


class Rows:
    """The rows of a result: dicts when iterated; Arrow, pandas or polars on request. `more`: the limit cut them off."""

    def __init__(self, result: QueryResult) -> None:
        self._result = result
        self.more = result.more
        self.seconds = result.seconds

    def arrow(self) -> "pa.Table":
        return self._result.rows

    def pandas(self) -> Any:
        """A pandas.DataFrame."""
        return self._result.rows.to_pandas()

    def polars(self) -> "pl.DataFrame":
        import polars as pl

        frame = pl.from_arrow(self._result.rows)
        assert isinstance(frame, pl.DataFrame)  # noqa: S101  -- a table, not a column
        return frame

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(to_dicts(self._result.rows))

    def __len__(self) -> int:
        return int(self._result.rows.num_rows)

    def __repr__(self) -> str:
        names = ", ".join(self._result.rows.column_names)
        return f"<{len(self)} rows of {names}{', and there are more' if self.more else ''}>"


class StoreClient:
    """Queries a store at an address such as `http://127.0.0.1:8480`. Thread-safe; close it, or use it in a `with`.
    `token` comes from serve.json where others must log in."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # The store is on this machine, so no proxy is used.
        self._client = httpx.Client(
            base_url=self.address, timeout=RESPONSE_GRACE_SECONDS, trust_env=False, headers=headers
        )

    @classmethod
    def for_serving(cls, serving: "StoreEndpoint") -> Self:
        """A client of the process that serves a project."""
        return cls(serving.address, serving.token)

    def query(self, sql: str, limits: QueryLimits = QueryLimits(), *, name: str = "") -> QueryResult:  # noqa: B008
        """The result of a query. `name` is the handle for `cancel`."""
        try:
            import pyarrow as pa
        except ModuleNotFoundError as error:
            from riverrun.store.factory import not_installed_error

            raise not_installed_error(error) from error

        request: dict[str, Any] = {"sql": sql, "limit": limits.rows, "seconds": limits.seconds, "format": "arrow"}
        if name:
            request["name"] = name
        response = self._call("POST", "/api/query", json=request, timeout=limits.seconds + RESPONSE_GRACE_SECONDS)
        with pa.ipc.open_stream(response.content) as reader:
            rows = reader.read_all()
        more = response.headers.get("X-Riverrun-More") == "true"
        return QueryResult(rows, more, float(response.headers.get("X-Riverrun-Seconds", 0)))

    @property
    def tables(self) -> dict[str, TableSpec]:
        """The tables, as far as a query needs to know them."""
        tables = self._call("GET", "/api/tables").json()["tables"]
        return {table["name"]: _decode_table(table) for table in tables}

    def table_statuses(self) -> list[TableStatus]:
        """The status of every table."""
        return [_decode_status(table) for table in self._call("GET", "/api/tables").json()["tables"]]

    def describe(self, table: str) -> dict[str, Any]:
        """A table's columns and its status."""
        description: dict[str, Any] = self._call("GET", f"/api/tables/{quote(table, safe='')}").json()
        return description

    def remove(self, table: str) -> None:
        self._call("DELETE", f"/api/tables/{quote(table, safe='')}")

    def cancel(self, name: str) -> bool:
        """Cancel a running query. False when none of that name runs."""
        try:
            self._call("DELETE", f"/api/query/{quote(name, safe='')}")
        except RiverrunError as error:
            if error.code == "QUERY_INVALID":
                return False
            raise
        return True

    def snapshot(self, path: Path, on_progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Bring a copy of all tables, as they are at one moment, as a DuckDB file. `on_progress` is told the bytes that have
        come, and how many there are."""
        part = path.with_name(f"{path.name}.part")
        try:
            # The server makes the copy before it sends the first byte.
            with self._stream("POST", "/api/snapshot", json={}, timeout=None) as response, part.open("wb") as file:
                total_bytes = int(response.headers.get("content-length", 0))
                for chunk in response.iter_bytes():
                    file.write(chunk)
                    on_progress(file.tell(), total_bytes)
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
        with self._stream(method, path, **options) as response:
            response.read()
            return response

    @contextmanager
    def _stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """The response, its body still to be read; an error that the store raised is raised here."""
        try:
            with self._client.stream(method, path, **options) as response:
                if not response.is_success:
                    response.read()
                    raise self._response_error(response)
                yield response
        except httpx.HTTPError as error:
            raise StoreUnavailableError(
                f"The store at {self.address} does not answer: {str(error) or type(error).__name__}",
                hint="Look whether `riverrun serve` still runs",
                address=self.address,
            ) from error

    def _response_error(self, response: httpx.Response) -> RiverrunError:
        try:
            return _decode_error(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            return StoreError(f"The store at {self.address} answers {response.status_code}", found=response.text[:200])


def _decode_error(content: Mapping[str, Any]) -> RiverrunError:
    """The error as the store raised it."""
    kinds = {
        error_type.code: error_type
        for error_type in vars(errors).values()
        if isinstance(error_type, type) and issubclass(error_type, StoreError)
    }
    kind = kinds.get(str(content["code"]), errors.UsageError if content["code"] == "USAGE" else StoreError)
    message, *lines = str(content["message"]).split("\n  ")
    fields = {name: value for name, value in dict(content.get("fields") or {}).items() if name.isidentifier()}
    known = {"what", "expected", "found", "hint", "lines"}
    return kind(
        message.removesuffix("."), lines=lines, **{key: value for key, value in fields.items() if key not in known}
    )


def _decode_table(content: Mapping[str, Any]) -> TableSpec:
    columns = tuple(Column(column["name"], column["type"], (column["name"],)) for column in content["columns"])
    return TableSpec(
        content["name"], content["topic"], columns, tuple(content["key"]), content["upserts"], content["time"]
    )


def _decode_status(content: Mapping[str, Any]) -> TableStatus:
    known = {
        name: content[name] for name in TableStatus.__dataclass_fields__ if name in content and name != "positions"
    }
    positions = {int(partition): offset for partition, offset in (content.get("positions") or {}).items()}
    return TableStatus(**{"rows": 0, **known, "table": content["name"]}, positions=positions)


def query_project(project: Any, sql: str, *, rows: int = DEFAULT_ROWS, seconds: float = 30.0) -> Rows:
    """Query the process that serves a project's store."""
    from riverrun.config.serve_state import require_store_endpoint

    with StoreClient.for_serving(require_store_endpoint(project)) as client:
        return Rows(client.query(sql, QueryLimits(rows, seconds)))
