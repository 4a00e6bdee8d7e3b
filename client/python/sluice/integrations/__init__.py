# SPDX-License-Identifier: BSD-2-Clause
"""Sluice inside other programs, one module each. None is imported unless it is used. docs/integrations.md is the guide."""
