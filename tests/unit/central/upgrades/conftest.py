"""Fixtures of the tests of `whitepanda fleet`."""

from tests.support.fleet_cli import lake, run  # noqa: F401 - fixtures
