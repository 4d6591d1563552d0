"""Traces with known antagonists, like Google's in form: what the methods are studied on."""
