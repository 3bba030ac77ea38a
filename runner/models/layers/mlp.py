"""Multilayer perceptron, and the parts of its hidden layers. B rows, C channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from runner.config_key import Key
from runner.config_value import check_value, find_field_problems
from runner.errors import raise_combined
from runner.models.argument_types import (
    AFTER_ACTIVATION,
    BATCH_NORM,
    Activation,
    Init,
    InnerNorm,
    Members,
    Norm,
    NormPlace,
    NormScope,
    Sizes,
)
from runner.models.layers.activations import Dice, make_activation
from runner.models.layers.batch_norm import BatchNorm, all_count
from runner.models.layers.dropout import Dropout
from runner.models.layers.linear import Linear, StackedLinear, init_weight
from runner.models.layers.mask import FieldNorm
from runner.models.layers.members import MemberLinear, MemberLogits
from runner.models.layers.normed_linear import are_one_operation, normed_linear
from runner.models.row_scope import UPDATE_SCOPE


@dataclass(frozen=True)
class HiddenLayers:
    """The modules after the linear map of a hidden layer: norm and activation, then dropout.

    None stands for the defaults of a model: no norm, norm before the activation, statistics
    over the update, ReLU.

    Args:
        norm: batch or layer; None for none.
        norm_place: before_activation or after_activation.
        norm_scope: rows over which a batch norm and Dice compute statistics: all of the
            `update`, or those of each `micro_batch` on each rank.
        activation: its name, see `make_activation`.
        dropout: of all hidden layers, or of each.

    Raises:
        ValueError: for an unknown name, or a dropout that is not a share.
    """

    norm: Norm = None
    norm_place: NormPlace = None
    norm_scope: NormScope = None
    activation: Activation = None
    dropout: Annotated[float | Sequence[float], Key(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        raise_combined(find_field_problems(self, ""))

    @property
    def cancels_bias(self) -> bool:
        """Whether a bias of the linear map would have no effect: a batch norm subtracts it."""
        return self.norm == BATCH_NORM and self.norm_place != AFTER_ACTIVATION

    def without_dropout(self) -> HiddenLayers:
        """Return the same layers without dropout."""
        return replace(self, dropout=0.0)

    def dropouts(self, num_layers: int) -> list[float]:
        """Return the dropout of each layer.

        Raises:
            ValueError: if it is given for another number of layers.
        """
        if not isinstance(self.dropout, Sequence):
            return [self.dropout] * num_layers
        if num_layers == 0:  # such as the item's tower, for which the list is not meant
            return []
        if len(self.dropout) != num_layers:
            raise ValueError(
                f"dropout={list(self.dropout)}: needs one number, or one for each of the "
                f"{num_layers} hidden layers"
            )
        return list(self.dropout)

    def modules(self, width: int, num_groups: int = 1) -> list[nn.Module]:
        """Return norm and activation, in their order, for [B, num_groups x width].

        Args:
            width: of one layer.
            num_groups: parallel layers, such as experts.
        """
        scope = self.norm_scope or UPDATE_SCOPE
        channels = width * num_groups
        modules = [make_activation(self.activation or "relu", channels, scope)]
        if isinstance(modules[0], nn.ReLU):  # the layer before it keeps no output for its gradient
            modules[0].inplace = True  # on CPU fresh memory costs more than the operation
        if self.norm is not None:
            norm: nn.Module = nn.LayerNorm(width)
            if self.norm == BATCH_NORM:
                norm = BatchNorm(channels, scope=scope)
            elif num_groups > 1:
                shape = (num_groups, width)
                norm = nn.Sequential(nn.Unflatten(1, shape), FieldNorm(*shape), nn.Flatten(1))
            if self.norm_place == AFTER_ACTIVATION:
                return [*modules, norm]
            return [norm, *modules]
        return modules


class RowSequential(nn.Sequential):
    """Modules in sequence; those that compute statistics are given the weights of rows."""

    @property
    def uncompiled(self) -> tuple[str, ...]:
        """Methods that `trainer.compile` does not compile.

        Norms of the rows split the loop into many graphs, each compiled again for other sizes.
        """
        return ("forward",) if self._has_norms_of_rows() else ()

    def _has_norms_of_rows(self) -> bool:
        return any(isinstance(module, BatchNorm | Dice) for module in self)

    def forward(self, x_BC: Tensor, weights_B: Tensor | None = None) -> Tensor:
        """Return the output of the last module.

        Args:
            weights_B: rows of weight 0 do not enter statistics; None: all do.
        """
        modules = list(self)
        if not self._has_norms_of_rows():
            weights_B = None
        elif self.training and not torch.compiler.is_compiling() and all_count(weights_B):
            weights_B = None  # checked once for all of them
        while modules:
            if are_one_operation(following := modules[:3], x_BC, weights_B):
                norm, _, linear = following
                x_BC, modules = normed_linear(norm, linear, x_BC), modules[3:]
                continue
            module, *modules = modules
            x_BC = module(x_BC, weights_B) if isinstance(module, BatchNorm | Dice) else module(x_BC)
        return x_BC


def mlp(
    num_inputs: int,
    widths: Sequence[int],
    hidden: HiddenLayers | None = None,
    *,
    input_dropout: float = 0.0,
    last: Literal["hidden", "activation", "linear"] = "hidden",
    members: int | None = None,
) -> RowSequential:
    """Return a linear layer for each width, with the modules after it.

    A hidden layer has no bias if a batch norm would subtract it again.

    Args:
        hidden: the modules after the linear map of a hidden layer; None: a ReLU.
        input_dropout: dropout before the first layer.
        last: the kind of the last layer: a hidden one, a linear map with only an activation, or a
            linear map.
        members: K networks in one, whose outputs are concatenated, see `MemberLinear`; the last
            layer is then a linear map. None: one network.

    Raises:
        ValueError: if a width is below 1, the dropout is for another number of layers, or members
            are too few, too many, or have no hidden layer that they share.
    """
    check_value("widths", widths, Sizes)
    hidden = hidden or HiddenLayers()
    dropouts = hidden.dropouts(len(widths) - (last != "hidden"))
    check_value("members", members, Members)
    if members is not None and not dropouts:
        raise ValueError(
            f"members={members}: they share hidden layers, and there are none; set members=null"
        )
    layers: list[nn.Module] = [Dropout(input_dropout)] if input_dropout else []
    for depth, width in enumerate(widths):
        is_hidden = depth < len(dropouts)
        has_bias = not (is_hidden and hidden.cancels_bias)
        if members is None:
            layers.append(Linear(num_inputs, width, bias=has_bias))
        elif is_hidden:
            is_first = depth == 0
            layers.append(
                MemberLinear(members, num_inputs, width, is_first=is_first, bias=has_bias)
            )
        else:
            layers.append(MemberLogits(members, num_inputs, width))
        if is_hidden:
            layers += hidden.modules(width, members or 1)
            if dropouts[depth]:
                layers.append(Dropout(dropouts[depth]))
        elif last == "activation":
            layers += replace(hidden, norm=None).modules(width)
        num_inputs = width
    return RowSequential(*layers)


def make_inner_norm(width: int, name: str | None, scope: str | None) -> RowSequential:
    """Return a norm of [B, C] outside the hidden layers.

    Args:
        width: C.
        name: batch, or None for none.
        scope: see `HiddenLayers`.

    Raises:
        ValueError: for another name.
    """
    if name is None:
        return RowSequential()
    check_value("inner_norm", name, InnerNorm)
    return RowSequential(BatchNorm(width, scope=scope or UPDATE_SCOPE, averages_first=True))


def init_linear_layers(model: nn.Module, name: str | None) -> None:
    """Reinitialise all linear layers of a model, and set their biases to 0.

    A weight of shape [out, in] is drawn from, with gain 1 or, for Kaiming, that of a ReLU:
    xavier_normal N(0, 2 / (in + out)), as FuxiCTR; xavier_uniform U(-a, a) with
    a = sqrt(6 / (in + out)), Glorot and Bengio 2010; kaiming_normal N(0, 2 / in) and
    kaiming_uniform U(-a, a) with a = sqrt(6 / in), He et al. 2015 (arXiv:1502.01852); normal
    N(0, 0.0001^2), as DeepCTR. Each map of a `StackedLinear` is drawn separately. A module with
    weights besides its linear layers has a method `init_own_weights`.

    Args:
        model: its modules are initialised in their order.
        name: None keeps torch's U(-a, a) with a = 1 / sqrt(in), of the biases as well.

    Raises:
        ValueError: for an unknown name.
    """
    if name is None:
        return
    check_value("init", name, Init)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weights = (module.weight.detach(),)
            for part in module.split_weight() if isinstance(module, StackedLinear) else weights:
                init_weight(part, name)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif callable(init_own_weights := getattr(module, "init_own_weights", None)):
            init_own_weights(name)
