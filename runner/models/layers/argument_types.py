"""Arguments that the hidden layers of all models take, with the values of each. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from runner.config_key import Key
from runner.models.row_scope import ROW_SCOPES

Width = Annotated[int, Key("", ge=1, le=65536)]  # of a table, a layer or a vector
Widths = Sequence[Width]  # of hidden layers; none is allowed
Count = Annotated[int, Key("", ge=1, le=10000)]  # of layers, heads, experts, levels
EmbeddingInit = Annotated[float | None, Key("", ge=0)]
Positive = Annotated[float, Key("", gt=0)]

BEFORE_ACTIVATION, AFTER_ACTIVATION = NORM_PLACES = ("before_activation", "after_activation")
BATCH_NORM, LAYER_NORM = NORMS = ("batch", "layer")
DICE = "dice"
ACTIVATIONS = (*("relu", "leaky_relu", "prelu", DICE, "elu", "gelu", "silu", "sigmoid", "tanh"),)
INITS = ("xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform", "normal")

# They came after the models, so null is what a model did before, and is not signed.
NORM = Key("between the layers of all MLPs", choices=NORMS, signed="when set")
NORM_PLACE = Key("null: before_activation", choices=NORM_PLACES, signed="when set")
NORM_SCOPE = Key("rows of a batch's statistics", choices=ROW_SCOPES, signed="when set")
ACTIVATION = Key("of all hidden layers", choices=ACTIVATIONS, signed="when set")
INNER_NORM = Key("beside the hidden layers", choices=(BATCH_NORM,), signed="when set")
INIT = Key("of all linear layers", choices=INITS, signed="when set")

Norm = Annotated[str | None, NORM]
NormPlace = Annotated[str | None, NORM_PLACE]
NormScope = Annotated[str | None, NORM_SCOPE]
Activation = Annotated[str | None, ACTIVATION]
InnerNorm = Annotated[str | None, INNER_NORM]
Init = Annotated[str | None, INIT]
DropoutRate = Annotated[float, Key("of one layer", ge=0, lt=1)]
LayerDropout = DropoutRate | Sequence[DropoutRate]  # of all hidden layers, or of each

HIDDEN_KEYS = {
    "norm": NORM,
    "norm_place": NORM_PLACE,
    "norm_scope": NORM_SCOPE,
    "activation": ACTIVATION,
    "attention_activation": ACTIVATION,
    "inner_norm": INNER_NORM,
    "init": INIT,
}
