"""Ranks of two nodes: network namespaces with host names of their own, joined by torchrun."""

from __future__ import annotations
