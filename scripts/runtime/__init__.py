"""The environment that serves and tests the wheel."""
