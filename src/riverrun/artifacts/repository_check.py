"""Checks whether files can be fetched: requests one from the repository and discards it."""

import os
from collections.abc import Mapping
from pathlib import Path

from riverrun.artifacts.lock import read_lock
from riverrun.artifacts.maven_settings import read_maven_settings
from riverrun.artifacts.repository import Repository, choose_proxy, choose_repository
from riverrun.artifacts.timing import DownloadTiming
from riverrun.config import ArtifactSettings
from riverrun.errors import ArtifactMissingError


def check_repository(
    name: str, settings: ArtifactSettings, *, timeout: float = 5.0, environ: Mapping[str, str] | None = None
) -> Repository:
    """The repository that a set would be fetched from, once it has begun to answer with the set's smallest file.

    Raises what a fetch would raise: no connection, a refused login, a certificate that is not trusted, a missing file.
    """
    environ = os.environ if environ is None else environ
    maven = read_maven_settings(environ, Path(environ.get("HOME") or Path.home()))
    repository = choose_repository(settings, maven)
    smallest = min(read_lock(name).artifacts, key=lambda artifact: artifact.size)
    if repository.folder is not None:
        if not (repository.folder / smallest.path).is_file():
            raise ArtifactMissingError(f"The repository {repository} does not have {smallest}", artifact=smallest)
        return repository
    from riverrun.artifacts.http import HttpSource, RetryableDownloadError
    from riverrun.artifacts.tls import tls_context

    timing = DownloadTiming(connect=timeout, read=timeout)
    proxy = choose_proxy(repository.url, maven, environ)
    try:
        with (
            HttpSource(repository, proxy, tls_context(environ), timing, 1) as source,
            source.request(smallest, 0),
        ):
            return repository
    except RetryableDownloadError as error:
        raise error.final_error from error
