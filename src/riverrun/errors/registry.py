"""Errors between a topic and its schema registry."""

from riverrun.errors.base import RiverrunError


class RegistryError(RiverrunError):
    """Something is wrong with schemas in a registry."""

    code = "REGISTRY"


class RegistryUnavailableError(RegistryError):
    """No schema registry is known, or it does not answer."""

    code = "REGISTRY_UNAVAILABLE"
    retryable = True


class RegistryRefusedError(RegistryError):
    """It answers, and does not let us in, or refuses the request."""

    code = "REGISTRY_REFUSED"


class SchemaUnknownError(RegistryError):
    """The registry has no schema of this topic, or none with this id."""

    code = "SCHEMA_UNKNOWN"


class SchemaIncompatibleError(RegistryError):
    """A type was changed so that old and new records and readers are incompatible."""

    code = "SCHEMA_INCOMPATIBLE"
    exit_code = 2
