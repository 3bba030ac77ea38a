"""Types of the arguments of models and losses, with their allowed values. No torch here.

A configuration is checked against them before torch is imported, see
runner/config/part_arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from runner.config_key import Key
from runner.models.row_scope import ROW_SCOPES

Width = Annotated[int, Key(ge=1, le=65536)]  # of a table, a layer or a vector
Widths = Sequence[Width]  # of hidden layers; may be empty
SomeWidths = Annotated[Sequence[Width], Key(min_items=1)]
Size = Annotated[int, Key(ge=1)]  # of a layer; the model limits how large it may be
Sizes = Sequence[Size]
SomeSizes = Annotated[Sequence[Size], Key(min_items=1)]
Count = Annotated[int, Key(ge=1, le=10000)]  # of layers, heads, experts, levels
NumNegatives = Annotated[int, Key(ge=0, lt=2**31)]
NumNegativesOrNone = Annotated[int | None, Key(ge=0, lt=2**31)]
DropoutRate = Annotated[float, Key(ge=0, lt=1)]
EmbeddingInit = Annotated[float | None, Key(ge=0)]
Positive = Annotated[float, Key(gt=0)]
FromZero = Annotated[float, Key(ge=0)]
ByTask = Annotated[float | Mapping[str, float] | None, Key(ge=0)]  # one number, or one per task
RowScope = Annotated[str, Key(choices=("update", "micro_batch"))]
WidthOrNone = Annotated[int | None, Key(ge=1, le=65536)]
PositiveOrNone = Annotated[float | None, Key(gt=0)]
Share = Annotated[float, Key(ge=0, le=1)]
ShareBelow1 = Annotated[float, Key(ge=0, lt=1)]
ShareOrNone = Annotated[float | None, Key(gt=0, lt=1)]
TwoStreams = Annotated[Sequence[SomeWidths], Key(min_items=2, max_items=2)]
BilinearKind = Annotated[str, Key(choices=("all", "each", "interaction"))]
BridgeKind = Annotated[
    str,
    Key(choices=("hadamard_product", "pointwise_addition", "concatenation", "attention_pooling")),
]
TwoContexts = Annotated[Sequence[Sequence[str]], Key(min_items=2, max_items=2)]

# Arguments of the hidden layers of all models
AFTER_ACTIVATION, BATCH_NORM, DICE = "after_activation", "batch", "dice"
NORM_PLACES = ("before_activation", AFTER_ACTIVATION)
NORMS = (BATCH_NORM, "layer")
ACTIVATIONS = ("relu", "leaky_relu", "prelu", DICE, "elu", "gelu", "silu", "sigmoid", "tanh")
INITS = ("xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform", "normal")

# They were added later, so null means the earlier behaviour, and is not signed.
NORM = Key("between the layers of all MLPs", choices=NORMS, signed="when set")
NORM_PLACE = Key("null: before_activation", choices=NORM_PLACES, signed="when set")
NORM_SCOPE = Key("rows of a batch's statistics", choices=ROW_SCOPES, signed="when set")
INNER_NORM = Key("beside the hidden layers", choices=(BATCH_NORM,), signed="when set")
ACTIVATION = Key("of all hidden layers", choices=ACTIVATIONS, signed="when set")
INIT = Key("of all linear layers", choices=INITS, signed="when set")
# of several tasks; added later: runs without the setting shared one set
LINEAR = Key("of several tasks; null: own", choices=("own", "shared"), signed="when set")
SCALE = Key("of the logits, or by task; null: 1", gt=0, signed="when set")

Norm = Annotated[str | None, NORM]
NormPlace = Annotated[str | None, NORM_PLACE]
NormScope = Annotated[str | None, NORM_SCOPE]
InnerNorm = Annotated[str | None, INNER_NORM]
Activation = Annotated[str | None, ACTIVATION]
Init = Annotated[str | None, INIT]
LinearWeights = Annotated[str | None, LINEAR]
LogitScale = Annotated[float | Mapping[str, float] | None, SCALE]
LayerDropout = Annotated[float | Sequence[float], Key("of all layers, or of each", ge=0, lt=1)]

# Arguments added after these: false, 0 or null mean the earlier behaviour
WHEN_SET = Key(signed="when set")
FITTED = "fitted"
PAIRS = Key(choices=(FITTED,), signed="when set")
MEMBERS = Key("networks that share their matrices; null: one", ge=2, le=64, signed="when set")
NUM_KEPT = Key(ge=0, lt=2**31, signed="when set")
Members = Annotated[int | None, MEMBERS]
Switch = Annotated[bool, WHEN_SET]
Pairs = Annotated[bool | str, PAIRS]
NumKept = Annotated[int, NUM_KEPT]
ColumnOrNone = Annotated[str | None, WHEN_SET]

MOST_UNIFORM = 512  # default number of negatives of a model of the next item


def default_uniform(every: bool) -> int:
    """Return how many negatives `uniform: null` draws from a catalogue with as many items."""
    return 0 if every else MOST_UNIFORM


LATER_KEYS = {
    "model.net.exclude_known": WHEN_SET,
    "model.net.user": WHEN_SET,
    "model.net.hardest": NUM_KEPT,
    "model.net.hard_negatives": WHEN_SET,
    "model.net.hard_table": WHEN_SET,
    "model.net.memory": NUM_KEPT,
    "model.net.memory_warmup": NUM_KEPT,
    "model.net.learn_temperature": WHEN_SET,
    "model.net.linear_weights": LINEAR,
    "model.net.pairs": PAIRS,
    "model.net.members": MEMBERS,
    "model.net.periodic": WHEN_SET,
    "model.net.scale": SCALE,
    "model.loss.corrected": WHEN_SET,
}

HIDDEN_KEYS = {
    "norm": NORM,
    "norm_place": NORM_PLACE,
    "norm_scope": NORM_SCOPE,
    "inner_norm": INNER_NORM,
    "activation": ACTIVATION,
    "attention_activation": ACTIVATION,
    "init": INIT,
}
