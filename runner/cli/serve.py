"""`serve MODEL`: answers requests over HTTP with an exported model."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError
from runner.machine.imports import exit_at_signals


@exit_at_signals(signal.SIGINT, signal.SIGTERM)
def serve(words: Sequence[str], allow: Sequence[str]) -> int:
    """Serve a model until a signal.

    Raises:
        UserError: for errors in the words, a damaged model, and an address that is in use.
    """
    from runner.machine.cores import set_thread_environment, usable_cores
    from runner.serving.server.settings import ServeSettings, bind, check_settings

    args = vars(make_parser().parse(words))
    if args["model"] is None:
        raise UserError("serve: name a model that `export` has written: serve MODEL")
    settings = ServeSettings(**{name: x for name, x in args.items() if x is not None})
    check_settings(settings)
    listener = bind(settings.host, settings.port)
    threads = max(1, usable_cores() // settings.workers)
    set_thread_environment(threads)
    if settings.workers > 1:
        from runner.serving.artifact.check_artifact import check_artifact
        from runner.serving.items.item_index import read_index_manifest
        from runner.serving.server.workers import serve_with_workers

        artifact, _ = check_artifact(settings.model, settings.format, settings.trust_native_code)
        if settings.index is not None:
            read_index_manifest(settings.index, {"version": artifact.version})
        return serve_with_workers(settings, listener, threads)
    from runner.serving.server.counters import Counters
    from runner.serving.server.worker import serve as serve_alone

    return serve_alone(settings, listener, Counters(1), 0, threads)


def make_parser() -> VerbParser:
    """Return the parser of the words after `serve`; defaults are those of `ServeSettings`."""
    parser = VerbParser(
        "serve",
        "Serve an exported model over HTTP, by the Open Inference Protocol v2 (that of Triton and\n"
        "KServe), in JSON or binary, with raw columns or prepared ids. Requests that wait are\n"
        "scored together. At SIGTERM, SIGHUP and Ctrl-C it answers the requests that have come,\n"
        "and ends. There is no encryption and no password: anyone who reaches the address can ask.",
        examples=(
            "serve exported/clicks",
            "serve exported/clicks --host 0.0.0.0 --port 9000 --workers 4",
        ),
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", type=Path, help="a folder written by `export`"
    )
    for flag, metavar, kind, about in (
        ("--host", "ADDRESS", str, "address to listen on; default: 127.0.0.1, this machine only"),
        ("--port", "N", int, "port to listen on; default: 8080; 0: any free one"),
        ("--workers", "N", int, "processes, each with a copy of the model; default: 1"),
        ("--index", "DIR", Path, "search the nearest items in what `index` has made of this model"),
        ("--follow", "DIR", Path, "apply the deltas `delta-*` that appear in this folder"),
        ("--name", "NAME", str, "what addresses call the model; default: the folder's name"),
        ("--format", "FORMAT", str, "pt2, aoti or onnx; default: the first in the folder"),
        ("--max-rows", "N", int, "rows that a request may have, else status 400; default: 4096"),
        ("--max-top-k", "K", int, "nearest items that a row may ask for, else 400; default: 1000"),
        ("--max-body-mb", "N", int, "size that a request may have, else 413; default: 16"),
        ("--queue", "N", int, "requests of a worker that may wait, else 503; default: 64"),
        ("--batch-rows", "N", int, "rows scored together; 1: each request alone; default: 1024"),
        ("--batch-wait-ms", "MS", float, "how long a request waits for others; default: 0"),
    ):
        parser.add_value(flag, metavar, about, kind)
    parser.add_switch(
        "--trust-native-code", "load machine code (aoti), which runs with all your rights"
    )
    return parser
