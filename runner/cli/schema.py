"""`schema PATH`: reads a table and proposes the YAML that declares its columns."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from runner.cli.show_proposal import print_proposal
from runner.cli.verb_parser import VerbParser
from runner.config.hydra_text import hydra_value, shell_override
from runner.config.proposed_length import FEW_ROWS, next_item_overrides, table_overrides
from runner.data.columns.schema_file import expand_pattern
from runner.data.proposal.columns.choose_roles import SeveralLabelsError
from runner.data.proposal.columns.guess_label import find_stray_values, holds_grades, suggest_label
from runner.data.proposal.columns.interactions import MAX_LENGTH, TASKS, UnclearColumnError
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.features.uses import NUMBERS
from runner.data.proposal.find_splits import train_share
from runner.data.proposal.format_schema import format_schema_yaml
from runner.data.proposal.schema import SchemaProposal, propose_schema
from runner.errors import UserError, already_exists, nearest_hint, shell_path
from runner.launch.status import print_status

MANY_VALUES = 20_000_000  # of a sample, which take some ten seconds
# The default loss and the default metric of checkpoint.monitor are for labels of 0 and 1.
REGRESSION_OVERRIDES = (
    ' model/loss=by_kind "metrics.eval=[mae,mse,rmse,r2]"'
    ' "checkpoint.monitor={metric: validation/loss, direction: min}"'
)
# A model that starts as logistic or linear regression, and leaves it while validation improves.
# The loss selects the best weights: over few rows it is less a matter of chance than the AUC.
START = " model=wide_and_deep checkpoint.init_linear=true"
# Dot products of ids learn which users like which items, which neither a linear model nor a
# network can; they start as factors of the train rows, which are computed if each id has few, or
# near zero, where the regression is. An L2 that keeps the vector of one id small is too strong for
# a history, whose vectors are summed and point the same way, and for classes, which weight the
# products of each dimension separately.
PAIRS = " model.net.pairs=%s model.net.embedding_init=0.01 optimizer.sparse.l2_lookups="
PAIRS_L2, HISTORY_L2, CLASSES_L2 = "0.02", "0.005", "0.007"
MONITOR_LOG_LOSS = ' "checkpoint.monitor={metric: validation/log_loss, direction: min}"'
# No validation shows a log loss near zero: with N rows, all of them right, one wrong row in N is
# still likely. A run that went on would be surer of each row, and the first wrong one costs more.
PERFECT = " trainer.early_stop.threshold=%.2g"
VALIDATION_SHARE = 1 / 8  # of the train rows, in the splits that are proposed
RANKING_METRICS = ' "metrics.eval=[ndcg@10,auc,log_loss,normalized_entropy,calibration]"'
FEW_ITEMS = 2048  # all of which can be compared with the right one, as cheaply as samples
ALL_ITEMS = " model.net.every=true model.net.uniform=0"
SKIP_BAD_ROWS = " dataset.on_bad_rows=skip dataset.max_bad_rows=1000000000"
NEXT_ITEM_OVERRIDES = "model=sasrec optimizer=adam"
# With few rows, tables with small rates do not memorise rare ids before the network, which adds
# nothing at the start, has learnt what the regression lacks. Dot products would not leave zero with
# small rates; there the network has larger rates still. Its average fluctuates less.
FEW_ROWS_STEPS = " optimizer.sparse.lr=0.003 optimizer.dense.lr=0.002"
FEW_ROWS_STEPS_OF_PAIRS = " optimizer.dense.lr=0.01"
AVERAGE = " trainer.ema.decay=0.99"
# Few rows are learnt better by several networks that share their matrices, and interactions of
# numbers are found sooner with waves. With more rows the gain is small, and the time grows.
MEMBERS, MEMBERS_ROWS = " model.net.members=8", 20_000
PERIODIC = " model.net.periodic=true"
# More rows show more about each id; from a million on the time would grow, too.
LARGER_ROWS = 1_000_000
LARGER = ' model.net.embedding_dim=32 "model.net.deep=[256,128]"'


def schema(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print a table of the columns, and write the proposal to FILE or print it.

    Raises:
        UserError: for unknown flags, and for files that cannot be read or differ.
    """
    args = make_parser().parse(words)
    if len(args.paths) != 1:
        raise UserError(f"schema: name one path, not {len(args.paths)}; --help says more")
    path, out = args.paths[0], args.out
    if out is not None and Path(out).exists():
        raise UserError(already_exists("--out", out))
    if args.task is not None and args.task not in TASKS:
        hint = nearest_hint(args.task, TASKS)
        raise UserError(f"--task {args.task}: one of {', '.join(TASKS)}{hint}")
    hints = _read_hints(args)
    command = shlex.join(["schema", *words])
    while True:  # until no question remains
        try:
            proposal = propose_schema(path, args.validation, args.test, hints, _announce)
            break
        except SeveralLabelsError as error:
            labels = _ask_for_columns(error, "label", "a name, or several with commas")
            command += f" --label {shlex.quote(','.join(labels))}"
            hints = replace(hints, labels=labels)
        except UnclearColumnError as error:
            [name] = _ask_for_columns(error, error.flag, "a name")[:1]
            command += f" --{error.flag} {shlex.quote(name)}"
            hints = replace(hints, user=name) if error.flag == "user" else replace(hints, item=name)
    text = format_schema_yaml(proposal, command)
    if out is None:
        print_proposal(proposal, to_stderr=True)
        print(text, end="")
        return 0
    write_new_file(Path(out), text)  # before the pipe of `... | head` may be closed
    print_proposal(proposal, to_stderr=False)
    print(f"wrote {out}; {_next_step(proposal, out, command)}")
    return 0


def _announce(sample: pa.Table) -> None:
    """Print what is examined, if that takes long."""
    if sample.num_rows * sample.num_columns > MANY_VALUES:
        print_status(
            f"examining {sample.num_columns:,} columns of {sample.num_rows:,} sampled rows ..."
        )


def make_parser() -> VerbParser:
    """Return the parser of the words after `schema`."""
    parser = VerbParser(
        "schema",
        "Read a table and propose the YAML that declares its columns. Flags override what the\n"
        "names and values of columns suggest. NAMES are separated by commas; C{1..26} stands for\n"
        "C1 to C26.",
        examples=(
            "schema clicks.parquet --out clicks.yaml",
            "schema log.csv.gz --label click,buy --time ts --categorical 'C{1..26}'",
            "schema ratings.csv --task next_item --out ratings.yaml",
        ),
    )
    parser.add_words("paths", "PATH", "a file, a folder, a glob, a URL")
    for name, value, about in (
        ("validation", "PATH", "the files of the validation split"),
        ("test", "PATH", "the files of the test split"),
        ("out", "FILE", "where to write the YAML; it must not exist"),
        ("positive", "VALUE", "the text of the label that counts as 1"),
        ("weight", "NAME", "the weight of a row"),
        (
            "time",
            "NAME[=FORM]",
            "the time by which rows are split and histories are ordered; its form, such as dmy",
        ),
        ("user", "NAME", "the column of the user, in a table of interactions"),
        ("item", "NAME", "the column of the item, in a table of interactions"),
        (
            "task",
            "TASK",
            "what is predicted. next_item: the next item of a history; label: a column; "
            "regression: a column as a number; classes: a column as classes without an order",
        ),
        ("delimiter", "CHARACTER", "what separates the columns of a text file"),
    ):
        parser.add_value(f"--{name}", value, about)
    for name, about in (
        ("label", "the columns to predict"),
        ("numeric", "columns that are numbers"),
        ("categorical", "columns that are ids"),
        ("drop", "columns that are not read"),
        ("columns", "the names of the columns, for a text file without a header line"),
    ):
        parser.add_argument(f"--{name}", metavar="NAMES", action="append", default=[], help=about)
    return parser


def _read_hints(args: argparse.Namespace) -> Hints:
    def names(texts: Sequence[str]) -> tuple[str, ...]:
        parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
        return tuple(dict.fromkeys(name for part in parts for name in expand_pattern(part)))

    return Hints(
        labels=names(args.label),
        positive=args.positive,
        numeric=names(args.numeric),
        categorical=names(args.categorical),
        drop=names(args.drop),
        weight=args.weight,
        time=args.time,
        delimiter=args.delimiter,
        columns=names(args.columns),
        user=args.user,
        item=args.item,
        task=args.task,
    )


def _ask_for_columns(
    error: SeveralLabelsError | UnclearColumnError, part: str, form: str
) -> tuple[str, ...]:
    """Ask on a terminal which columns are the labels, the user or the item.

    Raises:
        UserError: the given one, if there is no terminal, or no answer.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise error
    print(f"{error}", file=sys.stderr)
    while True:
        print(f"{part} ({form}; empty: none): ", end="", file=sys.stderr)
        sys.stderr.flush()
        line = sys.stdin.readline()
        names = tuple(name.strip() for name in line.split(",") if name.strip())
        if not names:
            raise error
        if not (unknown := [name for name in names if name not in error.candidates]):
            return names
        print(f"{unknown[0]}{nearest_hint(unknown[0], error.candidates)}", file=sys.stderr)


def write_new_file(path: Path, text: str) -> None:
    """Write a new file. An existing file may have been written by hand, so it is not replaced.

    Raises:
        UserError: if the file exists or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise UserError(already_exists("--out", path)) from None
        with suppress(OSError):  # the disk was full, or there is no such folder
            path.unlink()
        raise UserError(f"--out {path}: cannot be written: {error.strerror or error}") from error


def _next_step(proposal: SchemaProposal, out: str, command: str) -> str:
    """Return what to do with the file: a command that trains, or what is missing."""
    data = f"dataset={proposal.format} {shell_override('dataset.schema', out)}"
    if proposal.interactions is not None:
        distinct = {f.name: f.num_distinct for f, _ in proposal.columns}
        every = ALL_ITEMS if distinct[proposal.interactions["item"]] < FEW_ITEMS else ""
        num_windows = distinct[proposal.interactions["user"]] + _num_rows(proposal) // MAX_LENGTH
        words = " ".join([NEXT_ITEM_OVERRIDES, *next_item_overrides(num_windows)])
        parts = {proposal.interactions[part] for part in ("user", "item", "time")}
        has_gaps = any(f.missing_share for f, _ in proposal.columns if f.name in parts)
        more = SKIP_BAD_ROWS if has_gaps or proposal.has_malformed else ""
        return f"next: python -m runner {data} {words}{every}{more}"
    labels = proposal.with_role("labels")
    if not labels:
        name = suggest_label([f for f, _ in proposal.columns]) or "NAME"
        next_command = (
            f"rm {shell_path(out)} && python -m runner {command} --label {shlex.quote(name)}"
        )
        return f"it has no label yet: write one into it, or run: {next_command}"
    more = START
    ids = {f.name for f, _ in proposal.with_role("categorical")}
    has_pairs = len(ids | proposal.more_ids.keys()) > 1
    if has_pairs:
        is_history = any("of" in fields for fields in proposal.more_numbers.values())
        has_classes = any("classes" in role.settings for _, role in labels)
        l2 = CLASSES_L2 if has_classes else PAIRS_L2
        more += PAIRS % ("true" if has_classes else "fitted") + (HISTORY_L2 if is_history else l2)
    numbers = [f for f, role in labels if role.settings.get("type") == "regression"]
    is_regression = bool(numbers)
    links = {f.name for f, role in labels if "link" in role.settings}
    if deviations := {f.name: f.deviation for f in numbers if f.deviation}:
        more += _scale_overrides(deviations, links, is_single_task=len(labels) == 1)
    num_rows = _train_rows(proposal)
    if num_rows <= MEMBERS_ROWS:
        more += MEMBERS + (PERIODIC if _has_plain_numbers(proposal) else "")
    if num_rows <= FEW_ROWS:
        more += (FEW_ROWS_STEPS_OF_PAIRS if has_pairs else FEW_ROWS_STEPS) + AVERAGE
        more += "" if is_regression else PERFECT % (1 / max(2, VALIDATION_SHARE * num_rows))
    elif has_pairs and num_rows <= LARGER_ROWS:
        more += LARGER
    more += REGRESSION_OVERRIDES if is_regression else MONITOR_LOG_LOSS
    if is_regression and len(numbers) < len(labels):
        more = more.replace("eval=[", "eval=[auc,log_loss,")
    if proposal.groups and len(labels) == 1 and is_regression and holds_grades(labels[0][0]):
        more = more.replace("eval=[", "eval=[ndcg@10,")
    elif proposal.with_role("groups"):
        more += RANKING_METRICS
    also = {settings.get("column") for settings in proposal.more_numbers.values()}
    used = [f for f, role in proposal.columns if role.name in NUMBERS or f.name in also]
    is_bad = any(f.non_finite_share or f.num_wrong for f in used)
    is_bad |= any(find_stray_values(f) for f, role in labels if not role.settings)
    is_bad |= bool(proposal.num_untimed or proposal.has_malformed)
    if is_bad or any(f.missing_share for f, role in labels if "default" not in role.settings):
        more += SKIP_BAD_ROWS
    length = " ".join(table_overrides(num_rows))
    return f"next: python -m runner {data} {length}{more}"


def _has_plain_numbers(proposal: SchemaProposal) -> bool:
    """Return whether there are numbers but no vectors, whose elements would be many numbers."""
    all_settings = [role.settings for _, role in proposal.with_role("numeric")]
    all_settings += proposal.more_numbers.values()
    return bool(all_settings) and not any("size" in settings for settings in all_settings)


def _scale_overrides(
    deviations: Mapping[str, float], links: Collection[str], *, is_single_task: bool
) -> str:
    """Return the scales at which numeric labels are learnt, and their weights in the loss.

    A squared error is as large as a label's variance, and a deviance with a log link as the root of
    the deviation: with other labels they are counted in that unit. A logarithm has no unit.

    Args:
        deviations: of the labels, by name.
        links: those with a log link.
    """
    scales = {n: float(f"{value:.2g}") for n, value in deviations.items() if n not in links}
    if is_single_task:
        return "".join(f" model.net.scale={scale:g}" for scale in scales.values())
    weights = {
        n: float(f"{value ** (-0.5 if n in links else -2):.2g}") for n, value in deviations.items()
    }
    words = ""
    for key, by_task in (("model.net.scale", scales), ("model.loss.weights", weights)):
        words += f" {shlex.quote(f'{key}={hydra_value(by_task)}')}" if by_task else ""
    return words


def _num_rows(proposal: SchemaProposal) -> int:
    """Return the number of rows of the train split's files; of a large text file, of those read."""
    return proposal.num_train_rows or proposal.columns[0][0].num_rows


def _train_rows(proposal: SchemaProposal) -> int:
    """Return about how many rows the train split has; of a large text file, of those read."""
    rows = _num_rows(proposal)
    split = proposal.places.get("split") or {}
    if "column" in split:
        column = next(f for f, _ in proposal.columns if f.name == split["column"])
        return int(rows * train_share(column, split["train"]))
    shares = split.get("random") or split
    held_out = [share for name, share in shares.items() if name in ("validation", "test")]
    return int(rows * (1 - sum(share for share in held_out if isinstance(share, float))))
