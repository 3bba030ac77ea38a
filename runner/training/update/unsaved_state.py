"""Warns of state and parameters of a user's parts that no checkpoint holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runner.errors import ConfigError
from runner.training.update.determinism import is_of_own_class

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


@contextmanager
def warn_of_unsaved_state(
    parts: Mapping[str, object], warn: Callable[[str], None]
) -> Iterator[None]:
    """Compare the attributes of a user's parts before and after an update, and warn of changes.

    Parameters and buffers are saved. In a resumed run other attributes, such as counts, tensors and
    random generators, are as the constructor made them.

    Args:
        parts: model, loss and task by name; modules in them count, too.
    """
    before = _attributes(parts)
    yield
    after = _attributes(parts)
    changed = [name for name, value in before.items() if name in after and after[name] != value]
    if changed:
        warn(
            f"the first update changed {', '.join(changed)}, which no checkpoint holds: a resumed "
            "run starts with the first value again, and differs from one that was never "
            "interrupted. Keep numbers and tensors in a buffer (`self.register_buffer`; of a task "
            "in a module that `ctx.add_module` adds), and draw from torch's own generator"
        )


def check_extra_state(key: str, part: object) -> None:
    """Check that a part keeps its state where a checkpoint holds it.

    Raises:
        ConfigError: if a module has a `get_extra_state`, whose values are not tensors.
    """
    for module in part.modules() if isinstance(part, nn.Module) else ():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ConfigError(
                f"{key}: {type(module).__name__} has get_extra_state, which checkpoints do not "
                "hold; keep its state in a buffer (`self.register_buffer`)"
            )


def warn_of_unregistered_parameters(
    parts: Mapping[str, nn.Module], warn: Callable[[str], None]
) -> None:
    """Warn of parameters of a user's modules that PyTorch does not find.

    Args:
        parts: model and loss by name; modules in them count, too.
    """
    known = {id(x) for part in parts.values() for x in (*part.modules(), *part.parameters())}
    names = [
        ".".join(filter(None, (name, place, attribute)))
        for name, part in parts.items()
        for place, owner in part.named_modules()
        if is_of_own_class(owner)
        for attribute, value in vars(owner).items()
        if attribute not in _MODULE_ATTRIBUTES and _holds_unknown_parameter(value, known)
    ]
    if names:
        warn(
            f"{', '.join(names)}: holds parameters that are neither trained nor saved, since "
            "PyTorch does not find them there: keep modules in an nn.ModuleList or nn.ModuleDict, "
            "and a tensor that is trained in an nn.Parameter"
        )


def _holds_unknown_parameter(value: object, known: Collection[int]) -> bool:
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(items, list | tuple | ValuesView):  # a longer one holds data
        return any(_holds_unknown_parameter(item, known) for item in islice(items, 1000))
    if id(value) in known:
        return False
    if isinstance(value, nn.Module):
        return any(p.requires_grad and id(p) not in known for p in value.parameters())
    return isinstance(value, Tensor) and value.is_leaf and value.requires_grad


def _attributes(parts: Mapping[str, object]) -> dict[str, Any]:
    """Return the attributes of a user's objects that can hold state, in a comparable form."""
    attributes = {}
    for name, part in parts.items():
        for place, owner in part.named_modules() if isinstance(part, nn.Module) else [("", part)]:
            if is_of_own_class(owner):
                buffers = getattr(owner, "_non_persistent_buffers_set", ())
                values = vars(owner) | {name: getattr(owner, name) for name in buffers}
                for attribute, value in values.items():
                    state = state_of(value)
                    if attribute not in _MODULE_ATTRIBUTES and state is not None:
                        attributes[".".join(filter(None, (name, place, attribute)))] = state
    return attributes


def state_of(value: object) -> Any:
    """Return a comparable state of a value; None for kinds that are not compared.

    Lists, dictionaries, objects and values that are None at first are left out: most are caches.
    """
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Tensor) and not value.is_complex():
        wide = value.detach().double()
        return repr([*value.shape, wide.sum().item(), wide.abs().sum().item()])
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    return None
