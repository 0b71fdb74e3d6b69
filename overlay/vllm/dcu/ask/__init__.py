# SPDX-License-Identifier: Apache-2.0
"""Verbs that explain: what would run, what ran, and why not."""
