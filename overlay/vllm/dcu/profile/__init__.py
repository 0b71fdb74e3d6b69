# SPDX-License-Identifier: Apache-2.0
"""Where a decode step's milliseconds go, and what to do about it."""
