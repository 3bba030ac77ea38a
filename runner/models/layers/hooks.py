"""Checks whether a module has hooks."""

from __future__ import annotations

from torch import nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_hooked(module: nn.Module) -> bool:
    """Return whether a hook is called when the module runs, forward or backward."""
    return any(getattr(module, name) for name in _HOOKS)
