"""Mistakes with schema registries, for docs/reference/errors.md: those that need none to be made."""

from support.bad_inputs import World, case

APP = """\
    import riverrun as rr

    app = rr.App("meters")


    class Reading(rr.Event):
        house: str = rr.key()
        load: {kind}


    app.topic("readings", Reading, format="{format}")
    """


def _app(world: World, kind: str = "float", format_: str = "avro") -> None:
    world.write("meters.py", APP.format(kind=kind, format=format_))


@case('Declare `format="avro"` where no schema registry is known')
def no_registry(world: World) -> str:
    world.attach()
    _app(world)
    return world.riverrun("topics", "apply", "--app", "meters.py")


@case("Name a schema registry that is not there (`registry.url`)")
def registry_away(world: World) -> str:
    world.attach()
    _app(world)
    world.environ["RIVERRUN_REGISTRY_URL"] = "http://127.0.0.1:9"
    return world.riverrun("topics", "apply", "--app", "meters.py")


@case("Name a schema registry without http:// (`registry.url`)")
def registry_without_scheme(world: World) -> str:
    world.environ["RIVERRUN_REGISTRY_URL"] = "registry.example:8081"
    return world.riverrun("registry", "list")


@case('Misspell a format: `format="avor"`')
def format_misspelt(world: World) -> str:
    _app(world, format_="avor")
    return world.riverrun("registry", "check", "--app", "meters.py")


@case('Give a topic with `format="avro"` a field that Avro cannot carry: `int | str`')
def field_not_for_avro(world: World) -> str:
    _app(world, kind="int | str")
    return world.riverrun("registry", "check", "--app", "meters.py")


@case("Use a schema registry without its packages")
def registry_not_installed(world: World) -> str:
    world.write("sitecustomize.py", "import sys\nsys.modules['fastavro'] = None\n")
    world.environ |= {"PYTHONPATH": str(world.root), "RIVERRUN_REGISTRY_URL": "http://127.0.0.1:9"}
    return world.riverrun("registry", "list")


@case("Run a schema registry for somebody else's Kafka: `riverrun up --registry` in an attached project")
def registry_for_others(world: World) -> str:
    world.attach()
    return world.riverrun("up", "--registry")
