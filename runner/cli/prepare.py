"""`prepare`: makes the prepared files of a dataset ahead of its first training."""

from __future__ import annotations

import os
import re
import signal
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from runner.cli.data_serve import dataset_overrides
from runner.cli.verb_parser import VerbParser
from runner.errors import UserError, first_line, raise_combined
from runner.machine.cores import set_thread_environment, usable_cores
from runner.machine.imports import end_imports, missing_extra

if TYPE_CHECKING:
    from runner.data.prepare.engine import Engine

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


def prepare(words: Sequence[str], allow: Sequence[str]) -> int:
    """Prepare a dataset, and print the paths of its files and the number of their rows.

    Raises:
        UserError: for errors in the words or the data, and if Ray is not installed.
    """
    from runner.config.compose import compose_job
    from runner.config.composed_checks import check_composed, with_row_count
    from runner.config.targets import allowed_packages
    from runner.launch import print_status

    args = make_parser().parse(words)
    num_workers = args.workers or usable_cores()
    memory = None if args.memory is None else parse_bytes(args.memory)
    raise_combined(_find_problems(args))
    overrides = dataset_overrides(args.words, args.schema)
    composed = compose_job(overrides)
    check_composed(with_row_count(composed), allowed_packages(allow))
    set_thread_environment(1)  # workers are processes
    end_imports()
    print_status(_prepare(composed.config["dataset"], args.ray, num_workers, memory))
    return 0


def _find_problems(args: Namespace) -> Iterator[str]:
    if args.schema is None and not any(word.startswith("dataset=") for word in args.words):
        yield (
            "prepare: name the data: --schema FILE for files of your own, or dataset=NAME with its "
            "settings, as for a training"
        )
    if args.workers is not None and args.workers < 1:
        yield f"--workers {args.workers}: must be at least 1"
    if args.ray is not None:
        yield from missing_extra(f"--ray {args.ray}", "ray", "ray")


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as 1.5GB.

    Raises:
        UserError: for any other text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(MB|GB|TB)", text.upper())
    if not match:
        raise UserError(f"--memory {text}: must be a number with a unit, such as 500MB or 4GB")
    return int(float(match[1]) * UNITS[match[2]])


def _prepare(
    dataset: Mapping[str, Any], ray_address: str | None, num_workers: int, memory: int | None
) -> str:
    """Prepare a dataset, and return a description of the result.

    Raises:
        UserError: for a dataset without its own files, and for data that cannot be read.
    """
    from runner.data.prepare.count_rows import count_rows, prepare_files
    from runner.data.prepare.fingerprint import build_recipe
    from runner.data.sets.criteo import Criteo
    from runner.data.tabular.table_recipe import TableRecipe
    from runner.launch import print_status

    recipe = build_recipe(dataset)
    if recipe is None or not hasattr(recipe, "make"):
        raise UserError(
            f"prepare: {dataset['_target_']} needs no preparation: a training reads it as it "
            "is. Files of tables and known data sets are prepared"
        )
    recipe.check()
    if isinstance(recipe, TableRecipe) and recipe.is_direct and not recipe.is_elsewhere:
        return "nothing to prepare: the files are read as they are"
    if isinstance(recipe, TableRecipe):
        has_parts = recipe.declared.interactions is None and not recipe.is_direct
    else:
        has_parts = isinstance(recipe, Criteo)
    if not has_parts:
        print_status(f"{recipe.name}: is prepared in one process")
        num_workers, ray_address = 1, None
    with _open_engine(ray_address, num_workers, memory) as engine:
        folder, files = prepare_files(recipe, engine if has_parts else None)
    rows = ", ".join(f"{split} {sum(map(count_rows, paths)):,}" for split, paths in files.items())
    return f"prepared data in {folder} ({rows} rows); a training finds them there"


@contextmanager
def _open_engine(ray_address: str | None, num_workers: int, memory: int | None) -> Iterator[Engine]:
    """Yield the engine for the parts: a Ray cluster, several processes, or this one.

    Raises:
        UserError: for a cluster that cannot be reached.
    """
    from runner.data.prepare.engine import InProcess, Processes, RayTasks
    from runner.distributed.parent_death import die_with_parent

    if ray_address is not None:
        import ray

        engine = RayTasks(num_workers, memory)
        with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            local_settings = {
                "include_dashboard": False,
                "num_cpus": num_workers,
                "_temp_dir": folder,
            }
            is_local = ray_address == "local"
            try:
                ray.init(
                    address=None if is_local else ray_address,
                    log_to_driver=False,
                    **(local_settings if is_local else {}),
                )
            except Exception as error:  # Ray raises errors of many classes
                raise UserError(f"--ray {ray_address}: {first_line(error)}") from error
            try:
                yield engine
            finally:
                ray.shutdown()
    elif num_workers == 1:
        yield InProcess(memory)
    else:
        end_with_this = partial(die_with_parent, os.getpid(), signal.SIGKILL)
        with closing(Processes(num_workers, memory, end_with_this)) as processes:
            yield processes


def make_parser() -> VerbParser:
    """Return the parser of the words after `prepare`."""
    parser = VerbParser(
        "prepare",
        "Make the files that a first training makes of a dataset: statistics, vocabularies and\n"
        "encoded rows, in the cache, where trainings find them. Several processes or a Ray\n"
        "cluster share the work; the files are the same to the bit. After a kill the same\n"
        "command continues.",
        examples=(
            "prepare --schema clicks.yaml dataset.rewrite=always",
            "prepare --schema clicks.yaml --workers 8 --memory 16GB",
            "prepare dataset=criteo dataset.path=criteo/train.txt",
            "prepare --schema clicks.yaml --ray auto --workers 64",
        ),
    )
    parser.add_words("words", "KEY=VALUE", "the dataset and its keys, as for a training")
    for flag, metavar, kind, about in (
        ("--schema", "FILE", Path, "the YAML of a table, short for dataset.schema=FILE"),
        ("--workers", "N", int, "parts that are worked on at once; default: one for each core"),
        ("--memory", "SIZE", str, "memory for all workers together, such as 4GB; default: 1 GB "
         "for the rows of each"),
        ("--ray", "ADDRESS", str, "work on a Ray cluster: auto, its address, or local, which "
         "starts one here; its nodes share the files and $RUNNER_CACHE"),
    ):  # fmt: skip
        parser.add_value(flag, metavar, about, kind)
    return parser
