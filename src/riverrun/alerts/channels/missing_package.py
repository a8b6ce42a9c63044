"""The error of a channel whose library is not installed."""

from riverrun.errors import ConfigError


def not_installed_error(package: str) -> ConfigError:
    return ConfigError([f'alerts need {package}, which is not installed: pip install "riverrun[alerts]"'])
