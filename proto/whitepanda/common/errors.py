"""The errors that people see: one clear line each, and an exit code."""

from __future__ import annotations

__all__ = ["ConfigError", "InputError", "TlsError", "UnavailableError", "WhitepandaError"]


class WhitepandaError(Exception):
    """Base of all errors that are told in one line: what, where, the value, the remedy."""

    exit_code = 1


class ConfigError(WhitepandaError):
    """A configuration file or a setting in it is wrong."""

    exit_code = 2


class InputError(WhitepandaError):
    """Data that the user gave (a trace, a scenario, an argument) is wrong."""

    exit_code = 3


class UnavailableError(WhitepandaError):
    """Something that has to run or exist does not: the agent, central, a library, a permission."""

    exit_code = 4


class TlsError(WhitepandaError):
    """A certificate or key is missing, unreadable, or not what it should be."""

    exit_code = 5
