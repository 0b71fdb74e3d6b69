"""Every known release: patches, drift, audit, tests."""
