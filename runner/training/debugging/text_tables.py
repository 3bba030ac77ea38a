"""What observers saw, as titled tables for 80 columns."""

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
    """Outputs of each module. The column of non-finite values is there only where there are any."""
    outputs = {
        n: statistics.outputs.get(n) for n in order_by_first_call(statistics.outputs, modules)
    }
    any_bad = any(seen is not None and seen.bad for seen in outputs.values())
    header = ["module", "output", "mean", "std", "min", "max", "zeros"]
    header += ["bad"] if any_bad else []
    rows = [[name, *_distribution(seen, any_bad)] for name, seen in outputs.items()]
    return f"activations in step {step:,}", TextTable(header, rows)


def _distribution(seen: Moments | None, any_bad: bool) -> list[str]:
    if seen is None:
        return ["not called", *["-"] * (6 if any_bad else 5)]
    ends = (seen.least, seen.most) if seen.count > seen.bad else (math.nan, math.nan)
    cells = [
        format_shape(seen.shape),
        *(format_short_number(v) for v in (seen.mean, seen.std, *ends)),
    ]
    cells.append(format_percent(seen.zeros / max(seen.count, 1)))
    return [*cells, format_percent(seen.bad / max(seen.count, 1))] if any_bad else cells


def gradient_table(
    statistics: ActivationStatistics,
    norms: GradientNorms,
    modules: Mapping[str, nn.Module],
    parameters: Mapping[str, nn.Parameter],
    step: int,
) -> TitledTable:
    """Gradient at each module's output; norms of its own parameters and of their gradients."""
    rows = []
    owned: dict[str, list[str]] = {}
    for parameter in parameters:
        owned.setdefault(parameter.rpartition(".")[0], []).append(parameter)
    others = [name for name in owned if name not in modules]  # the model's own, such as a bias
    for name in (*order_by_first_call(statistics.outputs, modules), *others):
        seen = statistics.gradients.get(name)
        own = owned.get(name, [])
        weight = _norm([float(parameters[p].detach().double().norm()) for p in own])
        gradient = _norm([g for p in own if (g := norms.get(p)) is not None])
        ratio = gradient / weight if weight and gradient is not None else None
        arriving = [None, None] if seen is None else [seen.rms, seen.abs_max]
        zeros = "-" if seen is None else format_percent(seen.zeros / max(seen.count, 1))
        cells = [format_short_number(v) for v in (weight, gradient, ratio)]
        rows.append((name or MODEL_ROW, *(format_short_number(v) for v in arriving), zeros, *cells))
    header = ("module", "out rms", "out max", "out zeros", "weights", "gradient", "ratio")
    title = f"gradients in step {step:,}: at each module's output; norms of its own weights"
    return title, TextTable(header, rows)


def lookup_tables(
    statistics: ActivationStatistics, modules: Mapping[str, nn.Module], step: int
) -> list[TitledTable]:
    """For each look-up, what the update read of each table and sent back to it."""
    found = []
    for part, uses in statistics.tables.items():
        look_up = modules[part]
        assert isinstance(look_up, TableLookup)
        rows = []
        for spec in look_up.specs:
            use = uses[spec.name]
            gradient = use.gradient
            rows.append(
                (
                    spec.name,
                    f"{spec.num_rows:,}",
                    f"{use.ids:,}",
                    f"{len(use.rows):,}",
                    format_percent(len(use.rows) / spec.num_rows),
                    format_short_number(compute_rows_norm(look_up, spec.name, use.rows)),
                    format_short_number(gradient.norm if gradient.count else None),
                )
            )
        header = ("table", "rows", "ids", "rows read", "of all", "norm of these", "gradient")
        found.append((f"tables of {part} in step {step:,}", TextTable(header, rows)))
    return found


def summary_table(
    modules: Mapping[str, nn.Module], parameters: Mapping[str, nn.Parameter], times: ModuleTimer
) -> TitledTable:
    """Modules with output shape, parameters of their own, and share of an update's time."""
    rows = []
    total = 0
    for name in order_by_first_call(times.shapes, modules):
        module = modules[name]
        count = count_own_parameters(module)
        total += count
        made = format_shape(times.shapes[name]) if name in times.shapes else "not called"
        spent = [format_percent(times.time_fraction(name, way)) for way in ("forward", "backward")]
        rows.append((name, type(module).__name__, made, f"{count:,}" if count else "-", *spent))
    if others := sum(
        p.numel() for n, p in parameters.items() if n.rpartition(".")[0] not in modules
    ):
        rows.append((MODEL_ROW, "", "", f"{others:,}", "", ""))
    for part in (OUTSIDE, OPTIMIZER_PART, DATA_PART):
        spent = [format_percent(times.time_fraction(part, way)) for way in ("forward", "backward")]
        rows.append((part, "", "", "", *spent))
    per_step_ms = 1000 * times.total_s() / max(times.num_steps, 1)
    rows.append(("an update", "", "", f"{total + others:,}", f"{per_step_ms:.1f} ms", ""))
    header = ("module", "type", "output", "parameters", "forward", "backward")
    return f"modules, and share of time over {times.num_steps:,} updates", TextTable(header, rows)


def count_own_parameters(module: nn.Module) -> int:
    """Of the module itself, without its children; of a look-up, its tables' weights."""
    if isinstance(module, TableLookup):
        return sum(spec.num_rows * spec.dim for spec in module.specs)
    return sum(p.numel() for p in module.parameters(recurse=False))


def order_by_first_call(
    called: Mapping[str, object], modules: Mapping[str, nn.Module]
) -> Sequence[str]:
    """Modules in the order of their first call, then those that were never called."""
    return [n for n in called if n in modules] + [n for n in modules if n not in called]


def _norm(parts: Sequence[float]) -> float | None:
    return math.sqrt(sum(p * p for p in parts)) if parts else None
