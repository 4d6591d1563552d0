"""Fixtures of the tests of `whitepanda fleet`."""

from tests.support.fleet_cli import lake, run

__all__ = ["lake", "run"]
