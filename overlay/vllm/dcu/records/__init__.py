# SPDX-License-Identifier: Apache-2.0
"""Capability records: schema, strict reading, the catalogue, the kernels they name."""
