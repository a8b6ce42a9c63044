"""Reads a pipeline file, and starts Spark first if the file needs it. Importable without PySpark."""

from pathlib import Path

from riverrun.app import App, load_app
from riverrun.config import Project, Settings
from riverrun.errors import DeclarationError
from riverrun.model.connectors.postgres import postgres

# Task slots for real-time streams when Spark starts before the file is read: how many they need is not known yet.
EARLY_SLOTS = 30


def load_pipeline(path: Path, settings: Settings, project: Project) -> App:
    """The app of a pipeline file. A file that needs Spark while it is read, as `@udf("double")` does, gets it first."""
    try:
        return _with_columns(load_app(path), settings, project)
    except DeclarationError as error:
        if not _needs_spark(error.__cause__):
            raise
    from riverrun.streams.run.session import cores, start_session  # takes half a second, and few files need it

    start_session(settings, project.home / "spark", name=path.stem, slots=cores() + EARLY_SLOTS)
    return _with_columns(load_app(path), settings, project)


def _with_columns(app: App, settings: Settings, project: Project) -> App:
    """The app, with the columns of its database tables as they were last read."""
    if any(isinstance(table.source, postgres) for table in app.tables.values()):
        from riverrun.connectors.postgres.columns import resolve_columns

        resolve_columns(app, settings.postgres, project)
    if not settings.postgres.follow:
        app.sources = {
            name: binding for name, binding in app.sources.items() if not isinstance(binding.source, postgres)
        }
    return app


def _needs_spark(error: BaseException | None) -> bool:
    text = str(error)
    return "SESSION_OR_CONTEXT" in text or "SparkContext" in text or "SparkSession" in text
