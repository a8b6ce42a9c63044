"""Maven's settings.xml: the repository Maven would use is the one we use, with its login and proxy, and no secret shows."""

import base64
from pathlib import Path

import pytest

from riverrun.artifacts.maven_settings import mirror_covers, read_maven_settings, settings_files
from riverrun.artifacts.repository import CENTRAL_URL, choose_proxy, choose_repository
from riverrun.config import ArtifactSettings, Secret
from riverrun.errors import ConfigError, RepositoryError, RiverrunError
from support.maven import Bench, MavenServer


def mirror(identity: str, url: str, mirror_of: str = "*", more: str = "") -> str:
    return f"<mirror><id>{identity}</id><url>{url}</url><mirrorOf>{mirror_of}</mirrorOf>{more}</mirror>"


def server_entry(identity: str, username: str, password: str, more: str = "") -> str:
    return f"<server><id>{identity}</id><username>{username}</username><password>{password}</password>{more}</server>"


@pytest.mark.parametrize(
    ("mirror_of", "url", "covered"),
    [
        ("*", CENTRAL_URL, True),
        ("central", CENTRAL_URL, True),
        ("other", CENTRAL_URL, False),
        ("other,central", CENTRAL_URL, True),
        (" other , central ", CENTRAL_URL, True),
        ("external:*", CENTRAL_URL, True),
        ("external:*", "http://localhost:8081/maven2", False),
        ("external:*", "file:///repository", False),
        ("external:http:*", CENTRAL_URL, False),
        ("external:http:*", "http://example.org/maven2", True),
        ("*,!central", CENTRAL_URL, False),
        ("!central,*", CENTRAL_URL, False),
        ("*,!other", CENTRAL_URL, True),
        ("central,!central", CENTRAL_URL, True),
        ("", CENTRAL_URL, False),
        ("Central", CENTRAL_URL, False),
    ],
)
def test_what_mirror_of_covers(mirror_of: str, url: str, covered: bool) -> None:
    assert mirror_covers(mirror_of, "central", url) is covered


# Which repository


class Files:
    """settings.xml files of a user and of an installation."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.maven = folder / "maven"
        self.environ = {"MAVEN_HOME": str(self.maven)}

    def user(self, content: str) -> Path:
        return self._write(self.home / ".m2" / "settings.xml", content)

    def installation(self, content: str) -> Path:
        return self._write(self.maven / "conf" / "settings.xml", content)

    def _write(self, path: Path, content: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        namespace = "http://maven.apache.org/SETTINGS/1.2.0"
        path.write_text(f'<settings xmlns="{namespace}">{content}</settings>', encoding="utf-8")
        return path

    def repository(self, **settings: object) -> str:
        chosen = ArtifactSettings(**settings)  # type: ignore[arg-type]
        return str(choose_repository(chosen, read_maven_settings(self.environ, self.home)))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_maven_central_is_the_default(files: Files) -> None:
    assert files.repository() == f"{CENTRAL_URL} (Maven Central)"


def test_the_setting_wins(files: Files) -> None:
    files.user(f"<mirrors>{mirror('corp', 'https://mirror.example/')}</mirrors>")
    assert files.repository(maven_url="https://my.example/repo/") == "https://my.example/repo (artifacts.maven_url)"


def test_the_users_mirror(files: Files) -> None:
    path = files.user(f"<mirrors>{mirror('corp', 'https://mirror.example/maven/')}</mirrors>")
    assert files.repository() == f"https://mirror.example/maven (mirror 'corp' in {path})"


def test_the_users_mirror_goes_before_the_installations(files: Files) -> None:
    files.installation(
        f"<mirrors>{mirror('all', 'https://all.example')}{mirror('corp', 'https://x.example')}</mirrors>"
    )
    files.user(f"<mirrors>{mirror('corp', 'https://mirror.example')}</mirrors>")
    assert files.repository().startswith("https://mirror.example ")


def test_the_installations_mirror_is_used_when_the_users_do_not_match(files: Files) -> None:
    files.installation(f"<mirrors>{mirror('all', 'https://all.example')}</mirrors>")
    files.user(f"<mirrors>{mirror('corp', 'https://mirror.example', 'other')}</mirrors>")
    assert files.repository().startswith("https://all.example ")


def test_a_mirror_that_names_central_goes_before_a_wildcard(files: Files) -> None:
    files.user(
        f"<mirrors>{mirror('all', 'https://all.example')}{mirror('c', 'https://c.example', 'central')}</mirrors>"
    )
    assert files.repository().startswith("https://c.example ")


def test_a_mirror_of_another_layout_is_none_for_us(files: Files) -> None:
    files.user(f"<mirrors>{mirror('p2', 'https://p2.example', '*', '<mirrorOfLayouts>p2</mirrorOfLayouts>')}</mirrors>")
    assert files.repository() == f"{CENTRAL_URL} (Maven Central)"


def test_mavens_own_blocker_of_http_does_not_concern_us(files: Files) -> None:
    blocker = mirror("maven-default-http-blocker", "http://0.0.0.0/", "external:http:*", "<blocked>true</blocked>")
    files.installation(f"<mirrors>{blocker}</mirrors>")
    assert files.repository() == f"{CENTRAL_URL} (Maven Central)"


def test_a_blocked_central_is_an_error(files: Files) -> None:
    files.user(f"<mirrors>{mirror('no', 'http://0.0.0.0/', '*', '<blocked>true</blocked>')}</mirrors>")
    with pytest.raises(RepositoryError, match="blocks Maven Central by its mirror 'no'"):
        files.repository()


@pytest.mark.parametrize("activation", ["named", "default", "none"])
def test_a_profile_can_move_central(files: Files, activation: str) -> None:
    default = "<activation><activeByDefault>true</activeByDefault></activation>" if activation == "default" else ""
    named = "<activeProfiles><activeProfile>p</activeProfile></activeProfiles>" if activation == "named" else ""
    repository = "<repository><id>central</id><url>https://moved.example/m</url></repository>"
    path = files.user(
        f"<profiles><profile><id>p</id>{default}<repositories>{repository}</repositories></profile></profiles>{named}"
    )
    moved = f"https://moved.example/m (repository 'central' in {path})"
    assert files.repository() == (f"{CENTRAL_URL} (Maven Central)" if activation == "none" else moved)


@pytest.mark.parametrize(
    "url",
    [
        "mirror.example/maven",
        "ftp://mirror.example",
        "https://",
        "https://h:99999/",
        "https://h/?a=b",
        "file://",
        "[",
        "//[",
    ],
)
def test_an_address_that_is_none(files: Files, url: str) -> None:
    with pytest.raises(ConfigError, match=r"artifacts\.maven_url"):
        files.repository(maven_url=url)


# Values to fill in


def test_variables_are_filled_in(files: Files) -> None:
    files.environ["MIRROR"] = "mirror.example"
    files.user(
        f"<mirrors>{mirror('corp', 'https://${env.MIRROR}/m')}</mirrors><localRepository>${{user.home}}/r</localRepository>"
    )
    assert files.repository().startswith("https://mirror.example/m ")
    assert read_maven_settings(files.environ, files.home).local_repository() == files.home / "r"


@pytest.mark.parametrize(("name", "reason"), [("env.NOT_THERE", "is not set"), ("some.property", "only Maven knows")])
def test_a_variable_that_is_not_there(files: Files, name: str, reason: str) -> None:
    path = files.user(f"<mirrors>{mirror('corp', f'https://${{{name}}}/m')}</mirrors>")
    with pytest.raises(ConfigError) as caught:
        files.repository()
    assert f"{path}: mirror corp asks for ${{{name}}}, which" in str(caught.value)
    assert reason in str(caught.value)


def test_a_variable_that_is_not_needed_may_be_missing(files: Files) -> None:
    files.user(
        f"<mirrors>{mirror('corp', 'https://mirror.example')}</mirrors>"
        f"<servers>{server_entry('other', 'u', '${env.NOT_THERE}')}</servers>"
    )
    assert files.repository().startswith("https://mirror.example ")


def test_a_file_that_is_no_xml(files: Files) -> None:
    path = files.user("<mirrors>")
    with pytest.raises(ConfigError, match="this is not XML") as caught:
        files.repository()
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.user("")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        files.repository()


def test_the_same_file_by_two_names_counts_once(files: Files) -> None:
    files.environ["M2_HOME"] = files.environ["MAVEN_HOME"]
    path = files.installation(f"<mirrors>{mirror('', 'https://a.example', 'other')}</mirrors>")
    assert settings_files(files.environ, files.home).count(path) == 2
    assert files.repository() == f"{CENTRAL_URL} (Maven Central)"


# Logins


def login_of(files: Files, **settings: object) -> tuple[str, str]:
    chosen = ArtifactSettings(**settings)  # type: ignore[arg-type]
    login = choose_repository(chosen, read_maven_settings(files.environ, files.home)).login
    return login.username, login.password.reveal()


def test_the_login_of_the_mirrors_id(files: Files) -> None:
    files.environ["TOKEN"] = "t0ken"
    files.user(
        f"<mirrors>{mirror('corp', 'https://mirror.example')}</mirrors>"
        f"<servers>{server_entry('x', 'a', 'b')}{server_entry('corp', 'ann', '${env.TOKEN}')}</servers>"
    )
    assert login_of(files) == ("ann", "t0ken")
    assert "t0ken" not in repr(choose_repository(ArtifactSettings(), read_maven_settings(files.environ, files.home)))


def test_the_login_of_a_mirror_is_used_when_its_address_is_given(files: Files) -> None:
    files.user(
        f"<mirrors>{mirror('corp', 'https://mirror.example/m/', 'nothing')}</mirrors>"
        f"<servers>{server_entry('corp', 'ann', 'pw')}</servers>"
    )
    assert login_of(files, maven_url="https://mirror.example/m") == ("ann", "pw")
    assert login_of(files, maven_url="https://other.example/m") == ("", "")


def test_the_login_in_an_address(files: Files) -> None:
    assert login_of(files, maven_url="https://ann:p%40w@mirror.example:8443/m") == ("ann", "p@w")
    assert files.repository(maven_url="https://ann:p%40w@[::1]:8443/m") == "https://[::1]:8443/m (artifacts.maven_url)"


def test_the_settings_login_wins(files: Files) -> None:
    given = login_of(files, maven_url="https://a:b@mirror.example", maven_username="ann", maven_password=Secret("pw"))
    assert given == ("ann", "pw")


def test_a_password_that_maven_encrypted(files: Files) -> None:
    encrypted = "{COQLCE6DU6GtcS5P=}"
    path = files.user(
        f"<mirrors>{mirror('corp', 'https://mirror.example')}</mirrors>"
        f"<servers>{server_entry('corp', 'ann', encrypted)}</servers>"
    )
    with pytest.raises(ConfigError) as caught:
        files.repository()
    assert f"{path}: server corp: its password is encrypted by Maven" in str(caught.value)
    assert encrypted not in str(caught.value)


def test_the_login_is_sent_and_never_shown(bench: Bench) -> None:
    headers = "<httpHeaders><property><name>X-Token</name><value>${env.T}</value></property></httpHeaders>"
    bench.environ["T"] = "t0ken-2"
    bench.write_settings(
        f"<mirrors>{mirror('corp', bench.server.url)}</mirrors>"
        f"<servers>{server_entry('corp', 'ann', 'secret-1', f'<configuration>{headers}</configuration>')}</servers>"
    )
    bench.fetch(only="small", maven_url="")
    sent = bench.server.requests[0].headers
    assert sent["Authorization"] == "Basic " + base64.b64encode(b"ann:secret-1").decode()
    assert sent["X-Token"] == "t0ken-2"
    bench.fails("middle", status=403)
    with pytest.raises(RiverrunError) as caught:
        bench.fetch(only="middle", maven_url="")
    told = f"{caught.value} {caught.value!r} {caught.value.as_dict()} {bench.progress.notes}"
    assert "as user 'ann'" in told
    assert "secret-1" not in told
    assert "t0ken-2" not in told


def test_a_login_does_not_follow_a_redirect_to_another_host(bench: Bench, tls_server: MavenServer) -> None:
    other = MavenServer()
    other.files = bench.server.files
    headers = "<httpHeaders><property><name>X-Token</name><value>t</value></property></httpHeaders>"
    bench.write_settings(
        f"<mirrors>{mirror('corp', bench.server.url)}</mirrors>"
        f"<servers>{server_entry('corp', 'ann', 'pw', f'<configuration>{headers}</configuration>')}</servers>"
    )
    path = bench.artifacts["small"].path
    bench.fails("small", status=302, headers={"Location": f"{other.url}/{path}"})
    bench.fetch(only="small", maven_url="")
    other.close()
    assert {"Authorization", "X-Token"} <= set(bench.server.requests[0].headers)
    assert not {"Authorization", "X-Token"} & set(other.requests[0].headers)


# Proxies


def proxy_entry(host: str, port: int, more: str = "", protocol: str = "http") -> str:
    return (
        f"<proxies><proxy><id>p</id><active>true</active><protocol>{protocol}</protocol><host>{host}</host>"
        f"<port>{port}</port>{more}</proxy></proxies>"
    )


def test_mavens_proxy_is_used(bench: Bench) -> None:
    login = "<username>ann</username><password>pw-1</password>"
    bench.write_settings(proxy_entry("127.0.0.1", bench.server.port, login))
    bench.fetch(only="small", maven_url="http://repository.invalid/maven2")
    request = bench.server.requests[0]
    assert request.target.startswith("http://repository.invalid/maven2/")
    assert request.headers["Proxy-Authorization"] == "Basic " + base64.b64encode(b"ann:pw-1").decode()


def test_the_environments_proxy_is_used(bench: Bench) -> None:
    bench.environ["HTTP_PROXY"] = f"http://ann:pw@127.0.0.1:{bench.server.port}"
    bench.fetch(only="small", maven_url="http://repository.invalid/maven2")
    assert bench.server.requests[0].headers["Proxy-Authorization"].startswith("Basic ")


def test_a_proxy_that_wants_a_login(bench: Bench) -> None:
    bench.server.connect_status = 407
    bench.environ["HTTPS_PROXY"] = f"http://ann:pw-1@127.0.0.1:{bench.server.port}"
    with pytest.raises(RepositoryError, match="not let through by the proxy") as caught:
        bench.fetch(only="small", maven_url="https://repository.invalid/maven2")
    assert f"http://127.0.0.1:{bench.server.port} (environment HTTPS_PROXY)" in str(caught.value)
    assert "pw-1" not in str(caught.value)


def test_a_proxy_that_fails(bench: Bench) -> None:
    bench.environ["HTTPS_PROXY"] = f"127.0.0.1:{bench.server.port}"
    with pytest.raises(RiverrunError, match="502") as caught:
        bench.fetch(only="small", maven_url="https://repository.invalid/maven2")
    assert caught.value.code == "DOWNLOAD_FAILED"


def proxy_of(files: Files, url: str) -> str:
    proxy = choose_proxy(url, read_maven_settings(files.environ, files.home), files.environ)
    return proxy.url if proxy else ""


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("", "repo.example", False),
        ("repo.example", "repo.example", True),
        ("*.example|localhost", "repo.example", True),
        ("*.example|localhost", "example", False),
        ("localhost|127.*", "127.0.0.5", True),
        ("REPO.example", "repo.EXAMPLE", True),
        ("a.example,repo.example", "repo.example", True),
    ],
)
def test_hosts_that_mavens_proxy_does_not_serve(files: Files, no_proxy: str, host: str, direct: bool) -> None:
    files.user(proxy_entry("proxy.example", 3128, f"<nonProxyHosts>{no_proxy}</nonProxyHosts>"))
    # Maven's own word on proxies is the last one.
    files.environ["ALL_PROXY"] = "http://other.example"
    assert proxy_of(files, f"https://{host}/m") == ("" if direct else "http://proxy.example:3128")


def test_a_proxy_that_is_not_active_is_none(files: Files) -> None:
    files.user(proxy_entry("proxy.example", 3128).replace("true", "false"))
    assert proxy_of(files, "https://repo.example") == ""


def test_a_port_that_is_none(files: Files) -> None:
    files.user(proxy_entry("proxy.example", 3128).replace("3128", "http"))
    with pytest.raises(ConfigError, match="proxy p: its port 'http' is not a number"):
        proxy_of(files, "https://repo.example")


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "https://repo.example", ""),
        ({"HTTPS_PROXY": "http://p.example:1"}, "https://repo.example", "http://p.example:1"),
        ({"HTTPS_PROXY": "p.example:1"}, "https://repo.example", "http://p.example:1"),
        ({"HTTPS_PROXY": "http://p.example"}, "https://repo.example", "http://p.example:80"),
        ({"HTTPS_PROXY": "https://p.example"}, "https://repo.example", "https://p.example:443"),
        ({"HTTP_PROXY": "http://p.example:1"}, "https://repo.example", ""),
        ({"ALL_PROXY": "http://p.example:1"}, "https://repo.example", "http://p.example:1"),
        ({"https_proxy": "http://s.example:1", "HTTPS_PROXY": "http://b.example:1"}, "https://repo.example", "http://s.example:1"),
        ({"HTTPS_PROXY": "http://[::1]:1"}, "https://repo.example", "http://[::1]:1"),
    ],
)  # fmt: skip
def test_the_environments_proxy(files: Files, environ: dict[str, str], url: str, proxy: str) -> None:
    files.environ.update(environ)
    assert proxy_of(files, url) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("*", "https://repo.example", True),
        ("example", "https://repo.example", True),
        (".example", "https://repo.example", True),
        ("*.example", "https://repo.example", True),
        ("ample", "https://repo.example", False),
        ("a.example, repo.example", "https://repo.example", True),
        ("repo.example:8443", "https://repo.example:8443/m", True),
        ("repo.example:8443", "https://repo.example/m", False),
        ("10.0.0.0/8", "https://10.1.2.3/m", True),
        ("10.0.0.0/8", "https://11.1.2.3/m", False),
        ("::1", "https://[::1]/m", True),
        (",", "https://repo.example", False),
    ],
)
def test_no_proxy(files: Files, no_proxy: str, url: str, direct: bool) -> None:
    files.environ.update({"HTTPS_PROXY": "http://p.example:1", "NO_PROXY": no_proxy})
    assert proxy_of(files, url) == ("" if direct else "http://p.example:1")


@pytest.mark.parametrize("value", ["socks5://user:pw-1@p.example:1", "http://user:pw-1@", "http://[pw-1"])
def test_a_proxy_we_cannot_use(files: Files, value: str) -> None:
    files.environ["HTTPS_PROXY"] = value
    with pytest.raises(ConfigError, match="environment HTTPS_PROXY") as caught:
        proxy_of(files, "https://repo.example")
    assert "pw-1" not in str(caught.value)
