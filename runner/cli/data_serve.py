"""`data-serve`: reads and encodes the rows of a dataset, and streams batches to trainings."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError, raise_combined, system_errors
from runner.machine.imports import end_imports, exit_at_signals, quiet_fx

DRAIN_S = 5.0  # for running requests; trainings repeat interrupted ones elsewhere


@exit_at_signals(signal.SIGTERM)
def data_serve(words: Sequence[str], allow: Sequence[str]) -> int:
    """Serve a dataset until a signal.

    Returns:
        The exit code: 128 and the number of the signal.

    Raises:
        UserError: for errors in the words or the data, and an address that is in use.
    """
    from runner.config.compose import compose_job
    from runner.config.composed_checks import check_composed, with_row_count
    from runner.config.targets import allowed_packages
    from runner.machine.cores import set_thread_environment
    from runner.machine.memory import keep_freed_memory
    from runner.serving.server.settings import bind

    args = make_parser().parse(words)
    raise_combined(_find_problems(args))
    bind(args.host.strip("[]"), args.port).close()  # before the data are prepared, which takes long
    overrides = dataset_overrides(args.words, args.schema)
    allowed = allowed_packages(allow)
    composed = compose_job(overrides)
    check_composed(with_row_count(composed), allowed)
    set_thread_environment(1)  # NumPy and Arrow do the work, in one thread per call
    keep_freed_memory()  # as in training
    quiet_fx()
    server = _open_server(args, composed.config["dataset"], allowed)
    end_imports()
    return _run(server, args)


def dataset_overrides(words: Sequence[str], schema: Path | None) -> list[str]:
    """Return the overrides that choose a dataset, with the expansion of `--schema`."""
    from runner.config.hydra_text import quote_hydra_value

    if schema is None:
        return list(words)
    chosen = [word for word in words if word.startswith("dataset=")] or [_dataset_of(schema)]
    rest = [word for word in words if not word.startswith("dataset=")]
    path = quote_hydra_value(os.path.realpath(os.path.expanduser(schema)))
    return [*chosen, f"dataset.schema={path}", *rest]


def _dataset_of(schema: Path) -> str:
    """Return the option for the files named in a YAML, by their ending; Parquet if unclear."""
    from runner.data.columns.schema_yaml import read_schema_file
    from runner.data.files.file_list import SUFFIXES

    schema = Path(os.path.expanduser(schema))
    path = str(read_schema_file(schema).get("path", "")) if schema.is_file() else ""
    known = (f for f, endings in SUFFIXES.items() if path.lower().endswith(endings))
    return f"dataset={next(known, 'parquet')}"


def _find_problems(args: Namespace) -> Iterator[str]:
    from runner.data.flight.protocol import is_loopback

    if args.schema is None and not any(word.startswith("dataset=") for word in args.words):
        yield (
            "data-serve: name the data: --schema FILE for files of your own, or dataset=NAME with "
            "its settings, as for a training"
        )
    if (args.tls_cert is None) != (args.tls_key is None):
        yield "data-serve: --tls-cert and --tls-key belong together"
    if not 0 <= args.port < 2**16:
        yield f"--port {args.port}: must lie in 0 to 65535"
    if not is_loopback(args.host) and (args.tls_cert is None or args.token_env is None):
        yield (
            f"--host {args.host}: others reach this address; it needs --tls-cert FILE, --tls-key "
            "FILE and --token-env NAME"
        )


def _open_server(args: Namespace, dataset: Any, allowed: Sequence[str]) -> Any:
    """Open the dataset and listen.

    Raises:
        UserError: for a dataset that cannot be served, or an address that is in use.
    """
    import pyarrow as pa

    from runner.data.flight.settings import read_token
    from runner.data.prepare.fingerprint import build_recipe, fingerprint
    from runner.data.tabular.table_recipe import TableRecipe

    token = read_token(args.token_env, "--token-env ")
    certificate = None
    if args.tls_cert is not None:
        certificate = (_read("--tls-cert", args.tls_cert), _read("--tls-key", args.tls_key))
    recipe, table = build_recipe(dataset), {}
    if isinstance(recipe, TableRecipe):
        recipe.check()  # before torch is imported, which takes seconds
    from runner.data.flight.server import DataServer
    from runner.data.read.parquet_dataset import ParquetDataset
    from runner.training.builder.instantiate import instantiate
    from runner.training.builder.part_kinds import KINDS

    data = instantiate(dataset, KINDS["dataset"], key="dataset", allowed=allowed)
    if not isinstance(data, ParquetDataset):
        raise UserError(
            f"data-serve: {dataset['_target_']} cannot be served: its rows are in no files; "
            "`python -m runner data-serve --schema FILE` serves a table, and dataset=NAME a known "
            "data set"
        )
    if isinstance(recipe, TableRecipe):
        table = {"format": recipe.format, "schema": recipe.schema_content}
    host = f"[{args.host}]" if ":" in args.host.strip("[]") else args.host
    location = f"grpc{'+tls' if certificate else ''}://{host}:{args.port}"
    try:
        return DataServer(
            data, fingerprint(dataset), table, location, certificate=certificate, token=token
        )
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"data-serve: cannot listen at {location}: {error}; --port 0 takes a free port"
        ) from error


def _run(server: Any, args: Namespace) -> int:
    """Print its address and data, and wait for a signal. Trainings then use other servers."""
    received: list[int] = []
    ended = threading.Event()

    def end(number: int, frame: Any) -> None:
        received.append(number)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    splits = ", ".join(f"{split} {rows:,}" for split, rows in server.dataset.num_rows.items())
    scheme = "grpc" if args.tls_cert is None else "grpc+tls"
    print(
        f"serving data {server.fingerprint} ({splits} rows) at "
        f"{scheme}://{args.host}:{server.port}",
        file=sys.stderr,
        flush=True,
    )
    ended.wait()
    closing = threading.Thread(target=server.shutdown, daemon=True)
    closing.start()
    closing.join(DRAIN_S)
    return 128 + received[0]


def _read(flag: str, path: Path) -> bytes:
    with system_errors(f"{flag} {path}"):
        return Path(os.path.expanduser(path)).read_bytes()


def make_parser() -> VerbParser:
    """Return the parser of the words after `data-serve`."""
    parser = VerbParser(
        "data-serve",
        "Read and encode the rows of a dataset, and send its batches to trainings with\n"
        "dataset=flight, on this machine or others. Several servers of the same files share the\n"
        "work. They have no state, so each may be killed and restarted at any time.",
        examples=(
            "data-serve --schema clicks.yaml",
            "data-serve dataset=csv --schema clicks.yaml dataset.path=data/clicks.csv",
            "data-serve dataset=criteo dataset.path=criteo --host 0.0.0.0 --port 8815 "
            "--tls-cert cert.pem --tls-key key.pem --token-env DATA_TOKEN",
        ),
    )
    parser.add_words("words", "KEY=VALUE", "the dataset and its keys, as for a training")
    for flag, metavar, kind, default, about in (
        ("--schema", "FILE", Path, None, "the YAML of a table, short for dataset.schema=FILE"),
        ("--host", "ADDRESS", str, "127.0.0.1", "address to listen on; default: this machine only"),
        ("--port", "N", int, 8815, "port to listen on; default: 8815; 0: any free one"),
        ("--tls-cert", "FILE", Path, None, "certificate, in PEM; needed where others reach it"),
        ("--tls-key", "FILE", Path, None, "its private key, in PEM"),
        ("--token-env", "NAME", str, None, "environment variable with the token of trainings"),
    ):
        parser.add_value(flag, metavar, about, kind, default=default)
    return parser
