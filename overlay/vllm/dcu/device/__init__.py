# SPDX-License-Identifier: Apache-2.0
"""What device, driver and code object are here."""
