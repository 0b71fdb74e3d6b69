"""Upstream: the pin, the known releases, the index, the sdist."""
