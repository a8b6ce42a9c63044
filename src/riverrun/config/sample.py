"""Texts made from the settings' declarations: the annotated riverrun.toml, and the reference page."""

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from riverrun.config.project import CONFIG_FILE
from riverrun.config.secret import Secret
from riverrun.config.spec import MAX_INT, SECTIONS, SettingSpec, setting_specs

_WIDTH = 100
_ORDER = (
    "A setting is found, highest first: flag, environment variable, `[profile.NAME]`, this file, default. "
    "`riverrun config` shows each value and where it came from."
)
_MINIMAL_TOML = """\
# Settings of this project. All of them have defaults:
#   riverrun config         shows each value and where it came from
#   riverrun config sample  explains each
[project]
app = "{app}"
"""


def minimal_toml(app: str) -> str:
    """The riverrun.toml of a new project: what it must have, and where to find the rest."""
    return _MINIMAL_TOML.format(app=app)


def sample_toml(app: str = "") -> str:
    """A riverrun.toml with every common setting, explained and commented out; `app` is set where it is given."""
    lines = [f"# {line}" for line in wrap("Settings of this project. " + _ORDER.replace("`", ""), _WIDTH)]
    for section, cls in SECTIONS.items():
        lines += ["", *(f"# {line}" for line in wrap(cls.__doc__ or "", _WIDTH)), f"[{section}]"]
        for spec in setting_specs():
            if spec.section == section and not spec.advanced:
                lines += _sample_lines(spec, app if spec.key == "project.app" else "")
    lines += [
        "",
        "# A profile changes some settings: riverrun --profile prod …, or RIVERRUN_PROFILE=prod.",
        "# [profile.prod.kafka]",
        '# bootstrap_servers = "broker-1.example:9092,broker-2.example:9092"',
        '# security_protocol = "SASL_SSL"',
        '# sasl_mechanism = "SCRAM-SHA-512"',
        '# sasl_username = "meters"',
        '# sasl_password = { env = "KAFKA_PASSWORD" }',
        "",
        "# More settings, for rarer needs: riverrun config reference",
    ]
    return "\n".join(lines) + "\n"


def _sample_lines(spec: SettingSpec, value: str) -> Iterator[str]:
    yield ""
    yield from (f"# {line}" for line in wrap(spec.help, _WIDTH))
    if spec.choices:
        yield f"# One of {', '.join(repr(choice) for choice in spec.choices if choice)}."
    if value:
        yield f"{spec.name} = {_toml(value)}"
    else:
        yield f"# {spec.name} = {_example(spec)}"


def _example(spec: SettingSpec) -> str:
    if spec.secret:
        return f'{{ env = "{spec.name.upper()}" }}'
    if spec.table:
        return spec.example or "{}"
    return _toml(spec.default or spec.example or spec.default)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def reference_page() -> str:
    """docs/reference/settings.md."""
    lines = [
        "# Settings",
        "",
        "Made from the declarations in `src/riverrun/config/spec.py` by `script/docs`.",
        "",
        _ORDER.replace("this file", f"`{CONFIG_FILE}`"),
        "",
        "A secret is never written in the file itself: `{ env = \"NAME\" }` takes it from a variable, `{ file = \"PATH\" }` "
        "from a file; in the environment, the name with `_FILE` behind it names a file.",
    ]  # fmt: skip
    for section, cls in SECTIONS.items():
        lines += [
            "",
            f"## [{section}]",
            "",
            cls.__doc__ or "",
            "",
            "| setting | default | what it is |",
            "| --- | --- | --- |",
        ]
        lines += [_reference_row(spec) for spec in setting_specs() if spec.section == section]
    return "\n".join(lines) + "\n"


def _reference_row(spec: SettingSpec) -> str:
    default = "" if isinstance(spec.default, Secret) or spec.table or spec.default == "" else f"`{_toml(spec.default)}`"
    notes = [spec.help]
    if spec.choices:
        notes.append("One of " + ", ".join(f"`{choice}`" for choice in spec.choices if choice) + ".")
    if spec.minimum_nonzero is not None:
        notes.append(f"0, or from {spec.minimum_nonzero} to {spec.maximum}.")
    elif spec.minimum is not None and spec.maximum is not None and spec.maximum < MAX_INT:
        notes.append(f"From {spec.minimum} to {spec.maximum}.")
    elif spec.minimum is not None:
        notes.append(f"At least {spec.minimum}.")
    if spec.example:
        notes.append(f"Example: `{spec.example if spec.table else _toml(spec.example)}`.")
    if spec.secret:
        notes.append("A secret.")
    notes.append("In the file only." if spec.table else f"Environment: `{spec.environment}`.")
    return f"| `{spec.name}` | {default} | {' '.join(notes)} |"
