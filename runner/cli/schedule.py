"""`schedule`: draws the learning rates of a configuration, or of a run, over its updates.

torch is not imported, but where an epoch counts and only the prepared data know its length.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UserError, nearest
from runner.optim.lr_scaling import rate_scale
from runner.optim.lr_schedule import Factor, build_schedule
from runner.optim.param_groups import TABLES, parse_parts
from runner.reporting.console.chart import ENDINGS, Chart, Line, in_terminal, write_chart
from runner.reporting.console.format import Table

FLAGS = ("--rows", "--out")
USAGE = "schedule [DIR] [overrides] [--rows N] [--out FILE.png|.svg|.html]"
MOST_POINTS = 20_000  # of a curve that are looked at
SYNTHETIC = "runner.data.sets.synthetic.synthetic"


@dataclass(frozen=True)
class Rate:
    """The learning rate of one optimizer."""

    name: str
    full: float | None  # None: the default of its class, which torch alone knows
    factor: Factor
    warmup: Any  # as set
    kind: str

    def at(self, update: int) -> float:
        return self.factor(update) * (1.0 if self.full is None else self.full)


@dataclass(frozen=True)
class Length:
    updates: int
    per_epoch: int | None  # None: not known, and not needed


def schedule(words: Sequence[str], allow: Sequence[str]) -> int:
    """Prints a chart and the rates at key points; `--out` writes the chart to a file.

    Raises: UserError for mistakes of the configuration, and for words that are none of these.
    """
    from runner.cli.flags import split_flags
    from runner.config.compose import compose_from_run, compose_job
    from runner.config.targets import allowed_packages
    from runner.launch import verify

    flags, rest = _flags(words)
    given = split_flags(rest)
    allowed = allowed_packages(allow)
    overrides = list(given.overrides)
    if overrides and "=" not in overrides[0] and not overrides[0].startswith("~"):
        run = Path(overrides.pop(0))
        composed = compose_from_run(run, overrides, config_dirs=given.config_dirs)
    else:
        composed = compose_job(overrides, config_dirs=given.config_dirs)
    verify(composed, allowed)
    for note in composed.notes:
        print(note, file=sys.stderr)
    length = _length(composed.config, flags.get("--rows"), allowed)
    rates = rates_of(composed.config, length)
    _show(rates, length)
    if "--out" in flags:
        out = Path(flags["--out"])
        try:
            write_chart(_chart(rates, length), out)
        except OSError as error:
            raise UserError(f"--out {out}: {error.strerror or error}") from error
        print(f"wrote {out}")
    return 0


def rates_of(config: Mapping[str, Any], length: Length) -> list[Rate]:
    """Of every optimizer of the configuration, as the training will set them."""
    optimizer = config["optimizer"]
    scaling = config["trainer"].get("lr_scaling") or {"rule": "constant", "batches": None}
    scale = rate_scale(scaling["rule"], scaling["batches"])
    schedules = optimizer.get("schedules") or {}
    found = []
    for name in ("dense", "sparse"):
        own = schedules.get(name)
        node = own or config["scheduler"]
        where = f"optimizer.schedules.{name}" if own else "scheduler"
        found.append(_rate(name, optimizer[name].get("lr"), node, where, length, scale))
    for i, part in enumerate(parse_parts(optimizer)):
        if part.frozen:
            continue
        # only the model knows what a pattern owns; what it is given tells of tables or others
        sides = [s for s in ("dense", "sparse") if getattr(part, s) is not None]
        for side in sides or ["sparse" if TABLES.rstrip(".") in part.pattern else "dense"]:
            settings = getattr(part, side) or optimizer[side]
            node, where = part.schedule, f"optimizer.parts[{i}].schedule"
            if node is None:
                node, where = schedules.get(side) or config["scheduler"], "scheduler"
            name = part.name if len(sides) < 2 else f"{part.name}/{side}"
            found.append(_rate(name, settings.get("lr"), node, where, length, scale))
    return found


def _rate(
    name: str,
    full: float | None,
    node: Mapping[str, Any],
    where: str,
    length: Length,
    scale: float,
) -> Rate:
    factor = build_schedule(node, length.updates, steps_per_epoch=length.per_epoch, where=where)
    scaled = None if full is None else full * scale
    return Rate(name, scaled, factor, node.get("warmup") or 0, str(node["kind"]))


def _flags(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Ours, and the other words."""
    flags: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name not in FLAGS:
            if name.startswith("--") and nearest(name, FLAGS):
                raise UserError(f"schedule: {name}: no such flag{nearest(name, FLAGS)}; {USAGE}")
            rest.append(word)
        elif not equals and not left:
            raise UserError(f"schedule: {name} needs a value; {USAGE}")
        else:
            flags[name] = value if equals else left.pop(0)
    out = flags.get("--out", "x.png")
    if Path(out).suffix.lower() not in ENDINGS:
        raise UserError(f"schedule: --out {out}: a picture ends in {', '.join(ENDINGS)}")
    if not flags.get("--rows", "1").isdigit() or flags.get("--rows") == "0":
        raise UserError(f"schedule: --rows {flags['--rows']}: rows of the train split; {USAGE}")
    return flags, rest


def _length(config: Mapping[str, Any], rows: str | None, allowed: Sequence[str]) -> Length:
    """Updates of the run, and of an epoch where the configuration speaks of epochs."""
    trainer = config["trainer"]
    batch = trainer["batch_size"] * trainer["accumulate"] * trainer["num_processes"]
    dataset = config["dataset"]
    if rows is not None:
        num_rows = int(rows)
    elif dataset["_target_"] == SYNTHETIC:
        num_rows = dataset["rows"]["train"]
    elif trainer["max_epochs"] is not None or _speaks_of_epochs(config):
        num_rows = _rows_of(dataset, allowed)
    else:
        return Length(trainer["max_steps"], None)
    per_epoch = math.ceil(num_rows / batch)
    return Length(trainer["max_steps"] or per_epoch * trainer["max_epochs"], per_epoch)


def _speaks_of_epochs(node: Any) -> bool:
    if isinstance(node, Mapping):
        return any(
            _speaks_of_epochs(v) for k, v in node.items() if k not in ("trainer", "checkpoint")
        )
    if isinstance(node, list | tuple):
        return any(map(_speaks_of_epochs, node))
    return isinstance(node, str) and node.endswith("ep") and node[:-2].replace(".", "").isdigit()


def _rows_of(dataset: Mapping[str, Any], allowed: Sequence[str]) -> int:
    print(
        "reading the dataset for the length of its epochs; --rows N tells it at once",
        file=sys.stderr,
    )
    from runner.training.builder import instantiate

    return int(instantiate(dataset, allowed=allowed).num_rows["train"])


def _updates(total: int) -> list[int]:
    """The updates that are looked at: all, or evenly among very many."""
    if total <= MOST_POINTS:
        return list(range(1, total + 1))
    return sorted({1 + round(i * (total - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})


def _chart(rates: Sequence[Rate], length: Length) -> Chart:
    """Lines in parts of the full rate, since full rates may lie far apart; equal ones once."""
    updates = _updates(length.updates)
    curves: dict[tuple[float, ...], list[Rate]] = {}
    for rate in rates:
        curves.setdefault(tuple(rate.factor(k) for k in updates), []).append(rate)
    lines = [
        Line(", ".join(_legend(rate) for rate in sharing), list(zip(updates, factors)))
        for factors, sharing in curves.items()
    ]
    kinds = " and ".join(dict.fromkeys(rate.kind for rate in rates))
    epochs = length.updates / length.per_epoch if length.per_epoch else None
    counted = "" if epochs is None else f" ({epochs:.3g} epoch{'s' * (epochs != 1)})"
    title = f"{kinds}: rate / full rate over {length.updates:,} updates{counted}"
    return Chart(title, "update", lines)


def _legend(rate: Rate) -> str:
    return f"{rate.name} x {rate.full:g}" if rate.full is not None else rate.name


def _show(rates: Sequence[Rate], length: Length) -> None:
    width = shutil.get_terminal_size().columns
    chart = _chart(rates, length)
    print(chart.title)
    for line in chart.lines:
        print(f"\n{line.name}")
        print("\n".join(in_terminal(Chart("", chart.x_label, [line]), width=min(width, 100))))
    print()
    print("\n".join(_points(rates, length).lines()))
    if any(rate.full is None for rate in rates):
        print("a rate without optimizer.dense.lr is that of its class: shown is its factor")


def _points(rates: Sequence[Rate], length: Length) -> Table:
    """A row for the first update, ends of warm-up, the peak, quarters and the last update."""
    total = length.updates
    marks: dict[int, list[str]] = {}

    def mark(update: int, name: str) -> None:
        names = marks.setdefault(min(max(update, 1), total), [])
        if name not in names:
            names.append(name)

    mark(1, "first")
    updates = _updates(total)
    for rate in rates:
        end = warmup_end(rate, length)
        if end:
            mark(end, "end of warm-up")
        mark(max(updates, key=rate.factor), "peak")
    for quarter in (1, 2, 3):
        mark(round(total * quarter / 4), f"{quarter}/4" if quarter != 2 else "half")
    mark(total, "last")
    header = ["", "update", *(["epoch"] if length.per_epoch else []), *(r.name for r in rates)]
    rows = []
    for update in sorted(marks):
        epoch = [f"{update / length.per_epoch:.2f}"] if length.per_epoch else []
        values = [f"{rate.at(update):.4g}" for rate in rates]
        rows.append([", ".join(marks[update]), f"{update:,}", *epoch, *values])
    return Table(header, rows)


def warmup_end(rate: Rate, length: Length) -> int:
    """The update that has the full rate for the first time; 0 without a warm-up."""
    warmup = rate.warmup
    if isinstance(warmup, str):
        return round(float(warmup[:-2]) * (length.per_epoch or 0))
    return round(warmup * length.updates) if 0 < warmup < 1 else int(warmup)
