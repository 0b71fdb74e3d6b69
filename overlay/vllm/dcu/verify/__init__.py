# SPDX-License-Identifier: Apache-2.0
"""Verbs that measure: the rungs on this device, and the benchmark."""
