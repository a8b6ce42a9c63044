"""What `riverrun run` says of its store."""

import riverrun as rr
from riverrun.cli.storing import pages_of
from riverrun.config.serve_state import Serving


def test_the_dashboard_comes_first_where_there_is_one() -> None:
    app = rr.App("meters")
    serving = Serving(1, "http://127.0.0.1:8480", "meters", "embedded")
    assert [name for name, _ in pages_of(app, serving)] == ["Tables", "Pipeline"]
    app.dashboard(rr.number("Load", "select 1"))
    assert pages_of(app, serving)[0] == ("Dashboard", "http://127.0.0.1:8480/")
    others = Serving(1, "http://127.0.0.1:8480", "meters", "embedded", "https://box:8443")
    assert pages_of(app, others)[-1] == ("For others", "https://box:8443/")
