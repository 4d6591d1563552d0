"""Fixtures of the tests of `whitepanda fleet`."""
