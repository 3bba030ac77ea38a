"""Shows what observers saw as tables with titles, for 80 columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import nn

from runner.models.layers.embedding import TableLookup
from runner.reporting.console.format import TextTable
from runner.training.debugging.formatting import format_percent, format_shape, format_short_number
from runner.training.debugging.hooks import DATA_PART, OPTIMIZER_PART
from runner.training.debugging.statistics import (
    ActivationStatistics,
    GradientNorms,
    Moments,
    compute_rows_norm,
)
from runner.training.debugging.timing import OUTSIDE, ModuleTimer

TitledTable = tuple[str, TextTable]
MODEL_ROW = "(model)"


def activation_table(
    statistics: ActivationStatistics, modules: Mapping[str, nn.Module], step: int
) -> TitledTable:
    """Return a table of the outputs of each module.

    It has a column of non-finite values only if there are any.
    """
    names = order_by_first_call(statistics.outputs, modules)
    outputs = {name: statistics.outputs.get(name) for name in names}
    any_bad = any(moments is not None and moments.bad for moments in outputs.values())
    header = ["module", "output", "mean", "std", "min", "max", "zeros"]
    header += ["bad"] if any_bad else []
    rows = [[name, *_distribution(moments, any_bad)] for name, moments in outputs.items()]
    return f"activations in step {step:,}", TextTable(header, rows)


def _distribution(moments: Moments | None, any_bad: bool) -> list[str]:
    if moments is None:
        return ["not called", *["-"] * (6 if any_bad else 5)]
    m = moments
    ends = (m.least, m.most) if m.count > m.bad else (math.nan, math.nan)
    cells = [format_shape(m.shape), *(format_short_number(v) for v in (m.mean, m.std, *ends))]
    cells.append(format_percent(m.zeros / max(m.count, 1)))
    return [*cells, format_percent(m.bad / max(m.count, 1))] if any_bad else cells


def gradient_table(
    statistics: ActivationStatistics,
    norms: GradientNorms,
    modules: Mapping[str, nn.Module],
    parameters: Mapping[str, nn.Parameter],
    step: int,
) -> TitledTable:
    """Return a table of gradients by module.

    It shows the gradient at each module's output, and the norms of the parameters of the module
    itself and of their gradients.
    """
    rows = []
    by_module: dict[str, list[str]] = {}
    for parameter in parameters:
        by_module.setdefault(parameter.rpartition(".")[0], []).append(parameter)
    others = [name for name in by_module if name not in modules]  # of the model, such as a bias
    for name in (*order_by_first_call(statistics.outputs, modules), *others):
        moments = statistics.gradients.get(name)
        names = by_module.get(name, [])
        weight = _norm([float(parameters[p].detach().double().norm()) for p in names])
        gradient = _norm([g for p in names if (g := norms.get(p)) is not None])
        ratio = gradient / weight if weight and gradient is not None else None
        output = [None, None] if moments is None else [moments.rms, moments.abs_max]
        zeros = "-" if moments is None else format_percent(moments.zeros / max(moments.count, 1))
        cells = [format_short_number(v) for v in (weight, gradient, ratio)]
        rows.append((name or MODEL_ROW, *(format_short_number(v) for v in output), zeros, *cells))
    header = ("module", "out rms", "out max", "out zeros", "weights", "gradient", "ratio")
    title = f"gradients in step {step:,}: at each module's output; norms of its own weights"
    return title, TextTable(header, rows)


def lookup_tables(
    statistics: ActivationStatistics, modules: Mapping[str, nn.Module], step: int
) -> list[TitledTable]:
    """Return a table for each look-up: what the update read of each table, and sent back to it."""
    tables = []
    for part, usages in statistics.tables.items():
        lookup = modules[part]
        assert isinstance(lookup, TableLookup)
        rows = []
        for spec in lookup.specs:
            usage = usages[spec.name]
            gradient = usage.gradient
            rows.append(
                (
                    spec.name,
                    f"{spec.num_rows:,}",
                    f"{usage.ids:,}",
                    f"{len(usage.rows):,}",
                    format_percent(len(usage.rows) / spec.num_rows),
                    format_short_number(compute_rows_norm(lookup, spec.name, usage.rows)),
                    format_short_number(gradient.norm if gradient.count else None),
                )
            )
        header = ("table", "rows", "ids", "rows read", "of all", "norm of these", "gradient")
        tables.append((f"tables of {part} in step {step:,}", TextTable(header, rows)))
    return tables


def summary_table(
    modules: Mapping[str, nn.Module], parameters: Mapping[str, nn.Parameter], timer: ModuleTimer
) -> TitledTable:
    """Return a table of modules: output shape, own parameters, share of an update's time."""
    rows = []
    total = 0
    for name in order_by_first_call(timer.shapes, modules):
        module = modules[name]
        count = count_own_parameters(module)
        total += count
        shape = format_shape(timer.shapes[name]) if name in timer.shapes else "not called"
        counted = f"{count:,}" if count else "-"
        rows.append((name, type(module).__name__, shape, counted, *_time_cells(timer, name)))
    if others := sum(
        p.numel() for n, p in parameters.items() if n.rpartition(".")[0] not in modules
    ):
        rows.append((MODEL_ROW, "", "", f"{others:,}", "", ""))
    for part in (OUTSIDE, OPTIMIZER_PART, DATA_PART):
        rows.append((part, "", "", "", *_time_cells(timer, part)))
    per_step_ms = 1000 * timer.total_s() / max(timer.num_steps, 1)
    rows.append(("an update", "", "", f"{total + others:,}", f"{per_step_ms:.1f} ms", ""))
    header = ("module", "type", "output", "parameters", "forward", "backward")
    return f"modules, and share of time over {timer.num_steps:,} updates", TextTable(header, rows)


def _time_cells(timer: ModuleTimer, part: str) -> list[str]:
    return [
        format_percent(timer.time_fraction(part, "forward")),
        format_percent(timer.time_fraction(part, "backward")),
    ]


def count_own_parameters(module: nn.Module) -> int:
    """Count the weights of a module without its children, or of the tables of a look-up."""
    if isinstance(module, TableLookup):
        return sum(spec.num_rows * spec.dim for spec in module.specs)
    return sum(p.numel() for p in module.parameters(recurse=False))


def order_by_first_call(
    called: Mapping[str, object], modules: Mapping[str, nn.Module]
) -> Sequence[str]:
    """Return the names of modules in the order of their first call, then those never called."""
    return [n for n in called if n in modules] + [n for n in modules if n not in called]


def _norm(parts: Sequence[float]) -> float | None:
    return math.sqrt(sum(p * p for p in parts)) if parts else None
