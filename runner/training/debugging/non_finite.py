"""Finds the first NaN or infinity of a training, and what made it: a batch, a module, an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from runner.batch import Batch, Schema, blank_uncounted_rows
from runner.models.layers.embedding import TableLookup
from runner.training.debugging.formatting import describe_non_finite, is_finite
from runner.training.debugging.hooks import DATA_PART, Observer, iter_float_tensors
from runner.training.debugging.lookups import find_non_finite_rows
from runner.training.debugging.user_code import find_user_line
from runner.training.update.task import StepOutput


class NonFiniteError(Exception):
    """A value is NaN or infinite; the message says where it comes from."""


@dataclass
class BadGradient:
    """The first non-finite gradient of a backward."""

    gradient: Tensor
    location: str  # output, input, or the name of a parameter
    description: str  # how many of its values are not finite
    source_modules: list[str]  # several if they read the same tensor


class NonFiniteDetector(Observer):
    """Raises NonFiniteError at the first value that is not finite. Each event synchronises.

    In the forward pass, a module made the value if its output is not finite and its inputs are.
    The backward pass visits consumers first, so that the first bad gradient was made by the module
    that it has just passed. A bad gradient does not raise at once, since with a loss scale it is
    the way in which the scale is found.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
        schema: Schema,
    ) -> None:
        self.modules, self.parameters, self.schema = modules, parameters, schema
        self.last_part = ""
        self.bad_gradient: BadGradient | None = None
        self.lookup_calls: list[tuple[TableLookup, tuple[Any, ...]]] = []  # with their arguments

    def step_begins(self) -> None:
        self.last_part = ""
        self.bad_gradient = None
        self.lookup_calls = []

    def call_ends(self, part: str, inputs: Any, outputs: Any) -> None:
        if part == DATA_PART and outputs is not None:
            check_batch(outputs, self.schema)
        if part not in self.modules:
            return
        module = self.modules[part]
        bad = next((t for t in iter_float_tensors(outputs) if not is_finite(t)), None)
        if isinstance(module, TableLookup):
            args, _ = inputs
            self.lookup_calls.append((module, args))
            if bad is not None:
                raise NonFiniteError(_explain_lookup(self._name(part), module, args, bad))
        elif bad is not None:
            raise NonFiniteError(self._explain_forward(part, module, inputs, bad))
        self.last_part = part

    def gradient_at_output(self, part: str, gradient: Tensor) -> None:
        if self.bad_gradient is None:
            self._note_if_bad(gradient, "output", part)

    def gradient_at_input(self, part: str, gradient: Tensor) -> None:
        bad = self.bad_gradient
        if bad is None:
            self._note_if_bad(gradient, "input", part)
        elif bad.location in ("output", "input") and _is_same(bad.gradient, gradient):
            # hooks of one tensor run first for the module that made it, then for its readers
            readers = bad.source_modules if bad.location == "input" else []
            inner = [name for name in readers if not part.startswith(f"{name}.")]
            bad.source_modules = [*inner, part]
            bad.location = "input"

    def gradient_of_parameter(self, name: str, gradient: Tensor) -> None:
        if self.bad_gradient is None:
            self._note_if_bad(gradient, name, name.rpartition(".")[0])

    def _note_if_bad(self, gradient: Tensor, location: str, module: str) -> None:
        if not is_finite(gradient):
            description = describe_non_finite(gradient)
            self.bad_gradient = BadGradient(gradient, location, description, [module])

    def check_update(self, output: StepOutput, *, scaled: bool) -> None:
        """Check the losses, the gradients and the weights of an update that is done.

        Args:
            scaled: whether a loss scale is on, so that a skipped update is not a mistake.

        Raises:
            NonFiniteError: if a value is not finite.
        """
        for losses in output.losses:
            for name, loss_B in losses.items():
                if not is_finite(loss_B):
                    raise NonFiniteError(
                        f"the loss {name!r} is the first non-finite value, outside any module: "
                        f"{describe_non_finite(loss_B)}"
                    )
        if scaled and not output.applied:
            return
        if self.bad_gradient is not None:
            raise NonFiniteError(self._explain_backward(self.bad_gradient))
        if not output.applied:
            raise NonFiniteError(
                "a gradient is not finite, although all that passed a module are: it was made "
                "outside any module, on the way back to the embeddings; loop.anomaly=true names "
                "the operation"
            )
        self._check_weights()

    def _check_weights(self) -> None:
        bad = [name for name, p in self.parameters.items() if not is_finite(p)]
        if bad:
            more = f" and {len(bad) - 1} more parameters" if len(bad) > 1 else ""
            raise NonFiniteError(
                f"the update made {bad[0]}{more} non-finite from finite gradients: "
                f"{describe_non_finite(self.parameters[bad[0]])}; the learning rate may be too high"
            )
        for lookup, args in self.lookup_calls:
            for table, rows in find_non_finite_rows(lookup, *args).items():
                raise NonFiniteError(
                    f"the update made rows of table {table!r} non-finite from finite gradients: "
                    f"{_describe_rows(rows)}; the learning rate may be too high"
                )

    def _explain_forward(self, part: str, module: nn.Module, inputs: Any, bad: Tensor) -> str:
        place = f"; called at {find_user_line()}"
        tensors = [t for t in iter_float_tensors(inputs) if t.numel()]
        bad_input = next((t for t in tensors if not is_finite(t)), None)
        if bad_input is not None:
            since = f"after {self.last_part} " if self.last_part else ""
            return (
                f"the first non-finite value was made outside any module, {since}and before "
                f"{self._name(part)}, whose input holds {describe_non_finite(bad_input)}{place}"
            )
        facts = [
            f"its {name} holds {describe_non_finite(p)}"
            for name, p in module.named_parameters(recurse=False)
            if not is_finite(p)
        ]
        if tensors:
            largest = max(float(t.detach().abs().max()) for t in tensors)  # sync
            facts.append(f"its inputs are finite, of magnitude {largest:.3g} at most")
        return (
            f"module {self._name(part)} made the first non-finite value: its output holds "
            f"{describe_non_finite(bad)}; {'; '.join(facts)}{place}"
        )

    def _explain_backward(self, bad: BadGradient) -> str:
        sources = " or ".join(self._name(name) for name in bad.source_modules)
        if bad.location == "output":
            return (
                f"the first non-finite gradient was made outside any module, after {sources}, at "
                f"whose output it holds {bad.description}; loop.anomaly=true names the operation"
            )
        where = "at its input" if bad.location == "input" else f"of {bad.location}"
        return (
            f"module {sources} made the first non-finite gradient, {where}: {bad.description}; the "
            "gradient at its output is finite; loop.anomaly=true names the operation"
        )

    def _name(self, part: str) -> str:
        module = self.modules.get(part)
        return f"{part} ({type(module).__name__})" if module is not None else part or "(model)"


def check_batch(batch: Batch, schema: Schema) -> None:
    """Check the values of a batch, but those of rows of weight 0, which count for nothing.

    Raises:
        NonFiniteError: if a value is not finite; names the column and the row of the split.
    """
    batch = blank_uncounted_rows(batch)
    columns: dict[str, tuple[Sequence[str], Tensor]] = {
        "dense": (schema.dense, batch.dense_BD),
        "label": ([task.name for task in schema.tasks], batch.labels_BT),
        "weight": ((), batch.weights_B[:, None]),
    }
    for kind, (names, values_BC) in columns.items():
        if is_finite(values_BC):
            continue
        row, column = (~values_BC.isfinite()).nonzero()[0].tolist()
        name = f"{kind} {names[column]!r}" if names else kind
        raise NonFiniteError(
            f"the batch holds the first non-finite value: {name} of row "
            f"{int(batch.rows_B[row]):,} of the split is {float(values_BC[row, column])}; "
            f"{describe_non_finite(values_BC)}"
        )
    weights_V = batch.sparse.weights_or_none()
    if weights_V is not None and not is_finite(weights_V):
        raise NonFiniteError(
            f"the weights of the batch's ids are not finite: {describe_non_finite(weights_V)}"
        )


def _explain_lookup(name: str, lookup: TableLookup, args: tuple[Any, ...], bad: Tensor) -> str:
    rows_by_table = find_non_finite_rows(lookup, *args)
    if not rows_by_table:
        return (
            f"module {name} made the first non-finite value: {describe_non_finite(bad)}; the rows "
            "it read are finite: their sum overflows"
        )
    tables = "; ".join(f"table {t!r}, {_describe_rows(rows)}" for t, rows in rows_by_table.items())
    return f"module {name} made the first non-finite value, from its weights: {tables}"


def _describe_rows(rows: Tensor) -> str:
    first = ", ".join(f"{int(row):,}" for row in rows[:3])
    return f"row {first}" if len(rows) == 1 else f"{len(rows):,} of the rows read ({first}, ...)"


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two hooks were given the same gradient, whose tensors are both alive."""
    return tensor.data_ptr() == other.data_ptr() and tensor.shape == other.shape
