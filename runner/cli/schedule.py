"""`schedule`: plots the learning rates of a configuration, or of a run, over its updates.

torch is imported only if the length of an epoch is needed and only the prepared data determine it.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.cli.verb_parser import VerbParser
from runner.config.hydra_text import is_override
from runner.config_value import number_hint
from runner.distributed.global_batch import configured_global_batch_size
from runner.errors import system_errors
from runner.optim.lr_scaling import lr_scale_factor
from runner.optim.lr_schedule import LRFactor, build_schedule
from runner.optim.param_groups import TABLE_PREFIX, parse_parameter_groups
from runner.reporting.console.chart import CHART_SUFFIXES, Chart, Line, render_braille, write_chart
from runner.reporting.console.format import TextTable

MAX_POINTS = 20_000  # of a curve
SYNTHETIC_DATASET = "runner.data.sets.synthetic.synthetic"


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of one optimizer."""

    name: str
    base_lr: float | None  # None: the default of its class, known only to torch
    factor: LRFactor
    warmup: Any  # as in the configuration
    kind: str

    @property
    def legend(self) -> str:
        return f"{self.name} x {self.base_lr:g}" if self.base_lr is not None else self.name

    def lr_at(self, update: int) -> float:
        return self.factor(update) * (1.0 if self.base_lr is None else self.base_lr)


@dataclass(frozen=True)
class ScheduleLength:
    """The length of a run."""

    num_updates: int
    updates_per_epoch: int | None  # None: neither known nor needed


def schedule(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print a chart and the rates at key points; `--out` writes the chart to a file.

    Raises:
        UserError: for mistakes in the configuration or the flags, or if the file cannot be written.
    """
    from runner.config.compose import compose, compose_job
    from runner.config.composed_checks import check_composed, with_row_count
    from runner.config.targets import allowed_packages
    from runner.launch import resolve_automatic
    from runner.rundir.mirror.fetch import local_run

    args = make_parser().parse(words)
    allowed = allowed_packages(allow)
    overrides = list(args.words)
    if overrides and not is_override(overrides[0]):
        run = local_run(overrides.pop(0))
        composed = compose(overrides, config_dirs=args.config_dir, from_run=run)
    else:
        composed = compose_job(overrides, config_dirs=args.config_dir)
    if args.rows is not None:
        composed = with_row_count(composed, args.rows)
    check_composed(with_row_count(composed), allowed)
    composed = resolve_automatic(composed, allowed)
    for note in composed.notes:
        print(note, file=sys.stderr)
    length = _length(composed.config, args.rows, allowed)
    rates = build_learning_rates(composed.config, length, allowed)
    _print_schedule(rates, length)
    if args.out is not None:
        with system_errors(f"--out {args.out}"):
            write_chart(_chart(rates, length), args.out)
        print(f"wrote {args.out}")
    return 0


def build_learning_rates(
    config: Mapping[str, Any], length: ScheduleLength, allowed: Sequence[str] = ()
) -> list[LearningRate]:
    """Return the rates of every optimizer of a configuration, as training will set them."""
    optimizer = config["optimizer"]
    scaling = config["trainer"].get("lr_scaling") or {"rule": "constant", "batches": None}
    scale = lr_scale_factor(scaling["rule"], scaling["batches"])
    schedules = optimizer.get("schedules") or {}
    rates = []
    for name in ("dense", "sparse"):
        own_schedule = schedules.get(name)
        node = own_schedule or config["scheduler"]
        where = f"optimizer.schedules.{name}" if own_schedule else "scheduler"
        rates.append(
            _build_learning_rate(
                name, optimizer[name].get("lr"), node, where, length, scale, allowed
            )
        )
    for i, part in enumerate(parse_parameter_groups(optimizer)):
        if part.frozen:
            continue
        # Only the model determines which parameters a pattern owns. Its settings, or its text,
        # show whether these are tables.
        sides = [s for s in ("dense", "sparse") if getattr(part, s) is not None]
        for side in sides or ["sparse" if TABLE_PREFIX.rstrip(".") in part.pattern else "dense"]:
            settings = getattr(part, side) or optimizer[side]
            node, where = part.schedule, f"optimizer.parts[{i}].schedule"
            if node is None:
                node, where = schedules.get(side) or config["scheduler"], "scheduler"
            name = part.name if len(sides) < 2 else f"{part.name}/{side}"
            full = settings.get("lr")
            rates.append(_build_learning_rate(name, full, node, where, length, scale, allowed))
    return rates


def _build_learning_rate(
    name: str,
    full: float | None,
    node: Mapping[str, Any],
    where: str,
    length: ScheduleLength,
    scale: float,
    allowed: Sequence[str],
) -> LearningRate:
    scaled = None if full is None else full * scale
    total, per_epoch = length.num_updates, length.updates_per_epoch
    if "_target_" in node:
        from runner.training.builder import build_any_schedule  # torch is needed to recognise parts

        factor_at = build_any_schedule(
            node, where=where, total_steps=total, steps_per_epoch=per_epoch, allowed=allowed
        )
        factors = [factor_at(k) for k in range(1, total + 1)]  # in order: it may have a state
        name_of_class = str(node["_target_"]).rpartition(".")[2]
        return LearningRate(name, scaled, lambda k: factors[k - 1], 0, name_of_class)
    factor = build_schedule(node, total, steps_per_epoch=per_epoch, where=where)
    return LearningRate(name, scaled, factor, node.get("warmup") or 0, str(node["kind"]))


def make_parser() -> VerbParser:
    """Return the parser of the words after `schedule`."""
    parser = VerbParser(
        "schedule",
        "Draw the learning rates of a configuration, or of a run, over its updates.",
        examples=("schedule scheduler=cosine trainer.max_steps=10000", "schedule outputs/dlrm"),
    )
    parser.add_words("words", "DIR|KEY=VALUE", "a run, and overrides")
    parser.add_value("--rows", "N", "rows of the train split; default: from the data", _rows)
    parser.add_value("--out", "FILE", "a .png, .svg or .html file", _picture)
    parser.add_config_dirs()
    return parser


def _rows(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        hint = "" if text.isdecimal() else number_hint(text)
        raise argparse.ArgumentTypeError(
            f"{text}: must be a number of rows of the train split{hint}"
        )
    return int(text)


def _picture(text: str) -> Path:
    if Path(text).suffix.lower() not in CHART_SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text}: a picture ends in {', '.join(CHART_SUFFIXES)}")
    return Path(text)


def _length(config: Mapping[str, Any], rows: int | None, allowed: Sequence[str]) -> ScheduleLength:
    """Return the updates of the run, and of an epoch if the configuration counts in epochs."""
    trainer = config["trainer"]
    dataset = config["dataset"]
    if rows is not None:
        num_rows = rows
    elif dataset["_target_"] == SYNTHETIC_DATASET:
        num_rows = dataset["rows"]["train"]
    elif trainer["max_epochs"] is not None or _counts_epochs(config):
        num_rows = _count_rows(dataset, allowed)
    else:
        return ScheduleLength(trainer["max_steps"], None)
    per_epoch = math.ceil(num_rows / configured_global_batch_size(trainer))
    return ScheduleLength(trainer["max_steps"] or per_epoch * trainer["max_epochs"], per_epoch)


def _counts_epochs(node: Any) -> bool:
    if isinstance(node, Mapping):
        return any(_counts_epochs(v) for k, v in node.items() if k not in ("trainer", "checkpoint"))
    if isinstance(node, list | tuple):
        return any(map(_counts_epochs, node))
    return isinstance(node, str) and node.endswith("ep") and node[:-2].replace(".", "").isdigit()


def _count_rows(dataset: Mapping[str, Any], allowed: Sequence[str]) -> int:
    print(
        "reading the dataset for the length of its epochs; --rows N makes this unnecessary",
        file=sys.stderr,
    )
    from runner.training.builder import KINDS, instantiate

    built = instantiate(dataset, KINDS["dataset"], key="dataset", allowed=allowed)
    return int(built.num_rows["train"])


def _sampled_updates(total: int) -> list[int]:
    """Return the updates to plot: all of them, or an even sample of very many."""
    if total <= MAX_POINTS:
        return list(range(1, total + 1))
    return sorted({1 + round(i * (total - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)})


def _chart(rates: Sequence[LearningRate], length: ScheduleLength) -> Chart:
    """Plot each rate as a fraction of its full rate, since full rates may differ very much.

    Equal curves are plotted once.
    """
    updates = _sampled_updates(length.num_updates)
    curves: dict[tuple[float, ...], list[LearningRate]] = {}
    for rate in rates:
        curves.setdefault(tuple(rate.factor(k) for k in updates), []).append(rate)
    lines = [
        Line(", ".join(rate.legend for rate in sharing), list(zip(updates, factors)))
        for factors, sharing in curves.items()
    ]
    kinds = " and ".join(dict.fromkeys(rate.kind for rate in rates))
    epochs = length.num_updates / length.updates_per_epoch if length.updates_per_epoch else None
    counted = "" if epochs is None else f" ({epochs:.3g} epoch{'s' * (epochs != 1)})"
    title = f"{kinds}: rate / full rate over {length.num_updates:,} updates{counted}"
    return Chart(title, "update", lines)


def _print_schedule(rates: Sequence[LearningRate], length: ScheduleLength) -> None:
    width = shutil.get_terminal_size().columns
    chart = _chart(rates, length)
    print(chart.title)
    for line in chart.lines:
        print(f"\n{line.name}")
        print("\n".join(render_braille(Chart("", chart.x_label, [line]), width=min(width, 100))))
    print()
    print("\n".join(_key_points_table(rates, length).lines()))
    if any(rate.base_lr is None for rate in rates):
        print("without optimizer.dense.lr the rate is that of the class: shown is its factor")


def _key_points_table(rates: Sequence[LearningRate], length: ScheduleLength) -> TextTable:
    """Make a row for the first update, ends of warm-up, the peak, quarters and the last update."""
    total = length.num_updates
    marks: dict[int, list[str]] = {}

    def mark(update: int, name: str) -> None:
        names = marks.setdefault(min(max(update, 1), total), [])
        if name not in names:
            names.append(name)

    mark(1, "first")
    updates = _sampled_updates(total)
    for rate in rates:
        end = warmup_end(rate, length)
        if end:
            mark(end, "end of warm-up")
        mark(max(updates, key=rate.factor), "peak")
    for quarter in (1, 2, 3):
        mark(round(total * quarter / 4), f"{quarter}/4" if quarter != 2 else "half")
    mark(total, "last")
    per_epoch = length.updates_per_epoch
    header = ["", "update", *["epoch"] * bool(per_epoch), *(r.name for r in rates)]
    rows = []
    for update in sorted(marks):
        epoch = [f"{update / per_epoch:.2f}"] if per_epoch else []
        values = [f"{rate.lr_at(update):.4g}" for rate in rates]
        rows.append([", ".join(marks[update]), f"{update:,}", *epoch, *values])
    return TextTable(header, rows)


def warmup_end(rate: LearningRate, length: ScheduleLength) -> int:
    """Return the first update that has the full rate; 0 without a warm-up."""
    warmup = rate.warmup
    if isinstance(warmup, str):
        return round(float(warmup[:-2]) * (length.updates_per_epoch or 0))
    return round(warmup * length.num_updates) if 0 < warmup < 1 else int(warmup)
