"""One HTTP request for one file, with every failure classified: the only module that knows httpx.

A failure that a retry may cure is a `RetryableDownloadError` with the error to raise once attempts run out; everything
else is raised as the error it is. Messages hold the repository's address, never a login, a header or the target of a
redirect.
"""

import base64
import contextlib
import email.utils
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from riverrun._version import __version__
from riverrun.artifacts.lock import Artifact
from riverrun.artifacts.repository import Proxy, Repository
from riverrun.artifacts.timing import DownloadTiming
from riverrun.errors import ArtifactCorruptError, ArtifactError, ArtifactMissingError, DownloadError, RepositoryError

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_RETRY_STATUSES = frozenset({408, 425, 429})
_REFUSED_STATUSES = frozenset({401, 403, 407})


class RetryableDownloadError(Exception):
    """This attempt failed, and a retry may work.

    `retry_after` is how long the server asked us to wait, in seconds; `without_range` says that the next try must ask for
    all bytes.
    """

    def __init__(
        self,
        reason: str,
        final_error: ArtifactError,
        *,
        max_attempts: int,
        retry_after: float = 0.0,
        without_range: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final_error = final_error
        self.max_attempts = max_attempts
        self.retry_after = retry_after
        self.without_range = without_range


@dataclass(frozen=True)
class DownloadResponse:
    """The response for a file. `start` is the position of its first byte: 0 when the server does not resume."""

    start: int
    chunks: Iterator[bytes]


class HttpSource:
    """A remote repository. One for all threads; `abort` ends their requests at once."""

    def __init__(
        self, repository: Repository, proxy: Proxy | None, tls: ssl.SSLContext, timing: DownloadTiming, parallel: int
    ) -> None:
        self.repository = repository
        self.proxy = proxy
        self._timing = timing
        self._origin = _origin(httpx.URL(repository.url))
        self._active: set[httpx.Response] = set()
        self._lock = threading.Lock()
        self._client = httpx.Client(
            verify=tls,
            # repository.py and tls.py have chosen, from the same variables and from Maven's settings.
            trust_env=False,
            proxy=_httpx_proxy(proxy, tls),
            timeout=httpx.Timeout(timing.read, connect=timing.connect, pool=None),
            limits=httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel),
            follow_redirects=True,
            headers={"User-Agent": f"riverrun/{__version__}", "Accept-Encoding": "identity", "Accept": "*/*"},
            event_hooks={"request": [self._add_login]},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def _add_login(self, request: httpx.Request) -> None:
        """Add the login, to the repository itself only: a redirect elsewhere must not take it along."""
        login = self.repository.login
        headers = {name: value.reveal() for name, value in login.headers}
        if login.username or login.password:
            pair = f"{login.username}:{login.password.reveal()}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        for name, value in headers.items():
            if _origin(request.url) == self._origin:
                request.headers[name] = value
            else:
                request.headers.pop(name, None)

    def abort(self) -> None:
        """Cut all open connections, so that the threads that wait for them return."""
        with self._lock:
            responses = list(self._active)
        for response in responses:
            _shut_down_socket(response)

    @contextlib.contextmanager
    def request(self, artifact: Artifact, position: int) -> Iterator[DownloadResponse]:
        """Request a file from `position` on; reading the chunks raises as this does."""
        url = self.repository.address(artifact.path)
        headers = {"Range": f"bytes={position}-"} if position else {}
        with self._map_http_errors(url), self._client.stream("GET", url, headers=headers) as response:
            with self._lock:
                self._active.add(response)
            try:
                start = self._check_status(response, artifact, position, url)
                yield DownloadResponse(start, self._chunks_unless_stalled(response, url))
            finally:
                with self._lock:
                    self._active.discard(response)

    def _chunks_unless_stalled(self, response: httpx.Response, url: str) -> Iterator[bytes]:
        began, brought = time.monotonic(), 0
        for chunk in response.iter_bytes():
            brought += len(chunk)
            yield chunk
            if time.monotonic() - began > self._timing.stall:
                if brought < self._timing.stall_bytes:
                    raise self._retryable_error(f"only {brought} bytes came in {self._timing.stall:.0f} s", url)
                began, brought = time.monotonic(), 0

    def _check_status(self, response: httpx.Response, artifact: Artifact, position: int, url: str) -> int:
        status = response.status_code
        if status in {200, 206}:
            return self._check_content(response, artifact, position, url)
        status_line = f"{status} {response.reason_phrase}".strip()
        if status == 416:
            raise self._retryable_error("the server cannot continue there", url, without_range=True)
        if status in _RETRY_STATUSES or status >= 500:
            raise self._retryable_error(f"the server answered {status_line}", url, retry_after=_retry_after(response))
        if status in {404, 410}:
            raise ArtifactMissingError(
                f"The repository {self.repository} does not have {artifact}",
                found=f"{status_line} for {url}",
                hint="Use a repository that has it: --maven-url, artifacts.maven_url or a mirror in settings.xml",
                artifact=artifact,
                url=url,
                status=status,
            )
        if status in _REFUSED_STATUSES:
            raise self._repository_error(
                f"{url} is refused to us ({self._login_text()})", status_line, _LOGIN_HINT, url, status=status
            )
        raise self._repository_error(f"{url} cannot be fetched", status_line, _ADDRESS_HINT, url, status=status)

    def _check_content(self, response: httpx.Response, artifact: Artifact, position: int, url: str) -> int:
        if "html" in response.headers.get("Content-Type", "").lower():
            found = f"a web page ({response.headers['Content-Type']})"
            raise self._repository_error(f"{url} is not answered with the file", found, _PAGE_HINT, url)
        start, total = 0, response.headers.get("Content-Length", "")
        if response.status_code == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
            if match is None or int(match[1]) != position:
                raise self._retryable_error("the server continues at another place", url, without_range=True)
            start, total = position, match[2]
        if total.isdecimal() and int(total) != artifact.size and "Content-Encoding" not in response.headers:
            raise corrupt_download_error(
                artifact, self.repository, url, f"a file of {total} bytes", f"{artifact.size} bytes"
            )
        return start

    def _login_text(self) -> str:
        if self.repository.login.username:
            return f"as user {self.repository.login.username!r}"
        return "with the headers of settings.xml" if self.repository.login.headers else "without a login"

    def _repository_error(self, what: str, found: str, hint: str, url: str, **fields: Any) -> RepositoryError:
        via = f", through the proxy {self.proxy.url} ({self.proxy.origin})" if self.proxy else ""
        return RepositoryError(what, found=f"{found} from {self.repository}{via}", hint=hint, url=url, **fields)

    def truncated_error(self, url: str, position: int, size: int) -> RetryableDownloadError:
        """The response ended without an error, and too early."""
        return self._retryable_error(f"the answer ended after {position} of {size} bytes", url)

    def _retryable_error(
        self, reason: str, url: str, *, unreachable: bool = False, retry_after: float = 0.0, without_range: bool = False
    ) -> RetryableDownloadError:
        via = f" through the proxy {self.proxy.url} ({self.proxy.origin})" if self.proxy else ""
        final_error = DownloadError(
            f"{url} could not be fetched{via}: {reason}",
            hint=_UNREACHABLE_HINT if unreachable else "What arrived is kept: run it again to go on from there",
            url=url,
            reason=reason,
        )
        max_attempts = self._timing.max_unreachable_attempts if unreachable else self._timing.max_attempts
        return RetryableDownloadError(
            reason, final_error, max_attempts=max_attempts, retry_after=retry_after, without_range=without_range
        )

    @contextlib.contextmanager
    def _map_http_errors(self, url: str) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            unreachable = isinstance(error, httpx.ConnectTimeout)
            limit = self._timing.connect if unreachable else self._timing.read
            raise self._retryable_error(f"no answer in {limit:.0f} s", url, unreachable=unreachable) from error
        except httpx.ProxyError as error:
            # The proxy's own words, such as "407 Proxy Authentication Required".
            if "407" in str(error):
                raise self._repository_error(
                    f"{url} is not let through by the proxy", "407", _PROXY_HINT, url
                ) from error
            raise self._retryable_error(f"the proxy answered {error}", url, unreachable=True) from error
        except httpx.ConnectError as error:
            raise self._connection_error(error, url) from error
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            raise self._retryable_error("the connection was cut", url) from error
        except httpx.DecodingError as error:
            raise self._retryable_error("the answer could not be decoded", url) from error
        except httpx.TooManyRedirects as error:
            raise self._repository_error(
                f"{url} leads in a circle", "too many redirects", _ADDRESS_HINT, url
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # Not its text: it may quote a header.
            raise self._repository_error(
                f"{url} cannot be asked for", type(error).__name__, _ADDRESS_HINT, url
            ) from error

    def _connection_error(self, error: httpx.ConnectError, url: str) -> RetryableDownloadError | RepositoryError:
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                found = f"a certificate that is not trusted ({cause.verify_message})"
                return self._repository_error(f"{url} cannot be fetched safely", found, _TLS_HINT, url)
            if isinstance(cause, ssl.SSLError):
                found = f"a TLS failure ({cause.reason or cause.strerror or 'no reason given'})"
                return self._repository_error(f"{url} cannot be fetched safely", found, _ADDRESS_HINT, url)
            if isinstance(cause, socket.gaierror):
                host = httpx.URL(self.proxy.url if self.proxy else url).host
                return self._retryable_error(f"the name {host} is not known (no network?)", url, unreachable=True)
        reason = next((c.strerror for c in _causes(error) if isinstance(c, OSError) and c.strerror), str(error))
        return self._retryable_error(f"no connection: {reason}", url, unreachable=True)


_LOGIN_HINT = (
    "Put the login into a <server> of settings.xml with the mirror's id, or set RIVERRUN_ARTIFACTS_MAVEN_USERNAME and "
    "RIVERRUN_ARTIFACTS_MAVEN_PASSWORD"
)
_PROXY_HINT = "Give the proxy's user and password in settings.xml, or in HTTPS_PROXY as http://user:password@host:port"
_PAGE_HINT = "Is there a login page or a filtering proxy in between? Open the address in a browser to see what it says"
_ADDRESS_HINT = "Check the address of the repository: --maven-url, artifacts.maven_url or the mirror in settings.xml"
_TLS_HINT = "Install the authority's certificate in the system, or name its PEM file in SSL_CERT_FILE"
_UNREACHABLE_HINT = (
    "Check the network, and whether this machine needs a proxy (HTTPS_PROXY) or a mirror (--maven-url); what is in the "
    "cache or in ~/.m2/repository is used without a network"
)


def corrupt_download_error(
    artifact: Artifact, repository: Repository, url: str, found: str, expected: str
) -> ArtifactCorruptError:
    """The repository serves another file under this name."""
    return ArtifactCorruptError(
        f"{artifact.file_name} from {repository} is not what the lock file says, and was thrown away",
        expected=expected,
        found=found,
        hint="The repository or something on the way changed it: ask who runs it, or use another with --maven-url",
        artifact=artifact,
        url=url,
        expected_sha256=artifact.sha256,
    )


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    default = {"https": 443, "http": 80}.get(url.scheme)
    return url.scheme, url.host, url.port or default


def _httpx_proxy(proxy: Proxy | None, tls: ssl.SSLContext) -> httpx.Proxy | None:
    if proxy is None:
        return None
    auth = (proxy.username, proxy.password.reveal()) if proxy.username else None
    secure = tls if proxy.url.startswith("https:") else None
    return httpx.Proxy(proxy.url, auth=auth, ssl_context=secure)


def _retry_after(response: httpx.Response) -> float:
    """Seconds the server asks us to wait: a number, or a date."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _shut_down_socket(response: httpx.Response) -> None:
    """Shut a connection's socket from another thread. A copy of the descriptor, so that TLS state is left to its owner."""
    stream = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is None:
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)
