"""What goes wrong between a topic and its schema registry."""

from riverrun.errors.base import RiverrunError


class RegistryError(RiverrunError):
    """Something about schemas that a registry keeps."""

    code = "REGISTRY"


class RegistryUnavailableError(RegistryError):
    """No schema registry is known, or it does not answer."""

    code = "REGISTRY_UNAVAILABLE"
    retryable = True


class RegistryRefusedError(RegistryError):
    """It answers, and does not let us in, or not do this."""

    code = "REGISTRY_REFUSED"


class SchemaUnknownError(RegistryError):
    """The registry has no schema of this topic, or none with this id."""

    code = "SCHEMA_UNKNOWN"


class SchemaIncompatibleError(RegistryError):
    """A type was changed so that records and readers of before and after would not fit."""

    code = "SCHEMA_INCOMPATIBLE"
    exit_code = 2
