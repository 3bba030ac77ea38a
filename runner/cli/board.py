"""`board [DIR] [--port N]`: a live page of all runs and sweeps below a folder."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError
from runner.machine.imports import end_imports, exit_at_signals

_PORT = 8090


@exit_at_signals(signal.SIGTERM)
def board(words: Sequence[str], allow: Sequence[str]) -> int:
    """Serve the board until a signal.

    Returns:
        The exit code: 128 and the number of the signal, as of other servers.

    Raises:
        UserError: for a folder that does not exist, or a port that is in use.
    """
    from runner.reporting.board.server import ADDRESS, Board

    args = make_parser().parse(words)
    if not args.folder.is_dir():
        raise UserError(
            f"{args.folder}: no such folder; name one that holds runs: "
            "python -m runner board outputs"
        )
    try:
        server = Board(args.folder, args.port)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--port {args.port}: {getattr(error, 'strerror', None) or error}; any free port: "
            f"python -m runner board {args.folder} --port 0"
        ) from error
    address = f"http://{ADDRESS}:{server.server_port}/"
    print(f"board of {args.folder}: {address}  (Ctrl-C ends it)", flush=True)
    end_imports()
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return 128 + signal.SIGINT


def make_parser() -> VerbParser:
    """Return the parser of the words after `board`."""
    parser = VerbParser(
        "board",
        "Show all runs and sweeps below a folder on a page that keeps itself up to date: what\n"
        "runs and its curves, what failed with its last line, and chosen runs side by side.\n"
        "Only this machine can open it, and it changes nothing.",
        examples=("board", "board /shared/outputs --port 9000"),
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("outputs"),
        metavar="DIR",
        help="default: outputs",
    )
    parser.add_value("--port", "N", f"default: {_PORT}; 0: any free one", int, default=_PORT)
    return parser
