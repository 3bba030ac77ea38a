"""The first NaN or infinity of a training, and who made it: a batch, a module, or an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from runner.batch import Batch, Schema
from runner.models.layers.embedding import TableLookup
from runner.training.debugging.formatting import describe_non_finite, is_finite
from runner.training.debugging.hooks import DATA_PART, Observer, iter_float_tensors
from runner.training.debugging.lookups import find_non_finite_rows
from runner.training.debugging.user_code import find_user_line
from runner.training.update.task import StepOutput


class NonFiniteError(Exception):
    """A value is NaN or infinite; the message says where it came from."""


@dataclass
class BadGradient:
    """The first non-finite gradient of a backward."""

    gradient: Tensor
    location: str  # output, input, or the name of a parameter
    description: str  # what it held, in words
    source_modules: list[str]  # modules; several if they read the same tensor


class NonFiniteDetector(Observer):
    """Raises NonFiniteError at the first value that is not finite. Each look synchronises.

    Forward, a module made it if its output is not finite and its inputs are. Backward goes
    consumers first, so that the first gradient seen to be bad was made by the module it passed.
    A bad gradient does not raise at once: with a loss scale it is how the scale is found.
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
        self.lookup_calls: list[tuple[TableLookup, tuple[Any, ...]]] = []  # and what each was given

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
            given, _ = inputs
            self.lookup_calls.append((module, given))
            if bad is not None:
                raise NonFiniteError(_blame_tables(self._name(part), module, given, bad))
        elif bad is not None:
            raise NonFiniteError(self._blame(part, module, inputs, bad))
        self.last_part = part

    def gradient_at_output(self, part: str, gradient: Tensor) -> None:
        if self.bad_gradient is None and not is_finite(gradient):
            self.bad_gradient = BadGradient(
                gradient, "output", describe_non_finite(gradient), [part]
            )

    def gradient_at_input(self, part: str, gradient: Tensor) -> None:
        bad = self.bad_gradient
        if bad is None:
            if not is_finite(gradient):
                self.bad_gradient = BadGradient(
                    gradient, "input", describe_non_finite(gradient), [part]
                )
        elif bad.location in ("output", "input") and _same(bad.gradient, gradient):
            # the hooks of one tensor: first as what a module put out, then as what others read
            known = bad.source_modules if bad.location == "input" else []
            outer = [name for name in known if part.startswith(f"{name}.")]
            bad.source_modules = [name for name in known if name not in outer] + [part]
            bad.location = "input"

    def gradient_of_parameter(self, name: str, gradient: Tensor) -> None:
        if self.bad_gradient is None and not is_finite(gradient):
            owner = name.rpartition(".")[0]
            self.bad_gradient = BadGradient(gradient, name, describe_non_finite(gradient), [owner])

    def check_update(self, output: StepOutput, *, scaled: bool) -> None:
        """What only shows once the update is done.

        Args: scaled: a loss scale was on, so that a skipped update is not a mistake.
        Raises: NonFiniteError.
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
            raise NonFiniteError(self._blame_backward(self.bad_gradient))
        if not output.applied:
            raise NonFiniteError(
                "a gradient is not finite, and none that passed a module was: it was made outside "
                "any module, on the way back to the embeddings; loop.anomaly=true names the "
                "operation"
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
        for look_up, given in self.lookup_calls:
            for table, rows in find_non_finite_rows(look_up, *given).items():
                raise NonFiniteError(
                    f"the update made rows of table {table!r} non-finite from finite gradients: "
                    f"{_rows(rows)}; the learning rate may be too high"
                )

    def _blame(self, part: str, module: nn.Module, inputs: Any, bad: Tensor) -> str:
        place = f"; called at {find_user_line()}"
        given = [t for t in iter_float_tensors(inputs) if t.numel()]
        foul = next((t for t in given if not is_finite(t)), None)
        if foul is not None:
            since = f"after {self.last_part} " if self.last_part else ""
            return (
                f"the first non-finite value was made outside any module, {since}and before "
                f"{self._name(part)}, whose input holds {describe_non_finite(foul)}{place}"
            )
        weights = [
            f"its {name} holds {describe_non_finite(p)}"
            for name, p in module.named_parameters(recurse=False)
            if not is_finite(p)
        ]
        if given:
            largest = max(float(t.detach().abs().max()) for t in given)  # sync
            weights.append(f"its inputs are finite, of magnitude {largest:.3g} at most")
        return (
            f"module {self._name(part)} made the first non-finite value: its output holds "
            f"{describe_non_finite(bad)}; {'; '.join(weights)}{place}"
        )

    def _blame_backward(self, bad: BadGradient) -> str:
        makers = " or ".join(self._name(name) for name in bad.source_modules)
        if bad.location == "output":
            return (
                f"the first non-finite gradient was made outside any module, after {makers}, at "
                f"whose output it holds {bad.description}; loop.anomaly=true names the operation"
            )
        where = "at its input" if bad.location == "input" else f"of {bad.location}"
        return (
            f"module {makers} made the first non-finite gradient, {where}: {bad.description}; the "
            "gradient at its output is finite; loop.anomaly=true names the operation"
        )

    def _name(self, part: str) -> str:
        module = self.modules.get(part)
        return f"{part} ({type(module).__name__})" if module is not None else part or "(model)"


def check_batch(batch: Batch, schema: Schema) -> None:
    """Raises: NonFiniteError that names the column and an example of the split."""
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


def _blame_tables(name: str, look_up: TableLookup, given: tuple[Any, ...], bad: Tensor) -> str:
    rows = find_non_finite_rows(look_up, *given)
    if not rows:
        return (
            f"module {name} made the first non-finite value: {describe_non_finite(bad)}; the rows it read are "
            "finite: their sum overflows"
        )
    tables = "; ".join(f"table {table!r}, {_rows(found)}" for table, found in rows.items())
    return f"module {name} made the first non-finite value, from its weights: {tables}"


def _rows(rows: Tensor) -> str:
    first = ", ".join(f"{int(row):,}" for row in rows[:3])
    return f"row {first}" if len(rows) == 1 else f"{len(rows):,} of the rows read ({first}, ...)"


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether hooks of one tensor were given the same gradient; both are alive."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape
