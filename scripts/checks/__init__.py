"""The checks: lint, tests, benchmarks, the ladder of evidence."""
