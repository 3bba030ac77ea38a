"""`export DIR --out MODEL`: writes a trained model for use without this project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import raise_combined, unknown_choice
from runner.serving.artifact import FORMATS, QUANTISATIONS

WEIGHTS = ("ema", "trained")
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# The graph is traced on the CPU in one process, in float32 as it is.
FIXED = ("trainer.device=cpu", "trainer.num_processes=1", "trainer.compile=false")


def export(words: Sequence[str], allow: Sequence[str]) -> int:
    """Export the model of a run.

    Raises:
        UserError: for what cannot be exported, before anything is written.
    """
    given = make_parser().parse(words)
    formats = tuple(dict.fromkeys((given.format or "pt2").split(",")))
    raise_combined(_find_problems(given.folder, given.out, formats, given.quantise, given.weights))
    from runner.config.compose import compose_job
    from runner.config.targets import allowed_packages
    from runner.launch import check_composed, print_status
    from runner.machine import set_thread_environment, usable_cores

    average = {"ema": ("trainer.ema.evaluate=true",), "trained": ("trainer.ema.evaluate=false",)}
    composed = compose_job(
        [
            "loop=eval",
            f"run={given.folder}",
            *FIXED,
            *average.get(given.weights, ()),
            *given.overrides,
        ]
    )
    allowed = allowed_packages(allow)
    check_composed(composed, allowed)
    set_thread_environment(composed.config["trainer"]["num_threads"] or usable_cores())
    from runner.reporting.console import View
    from runner.serving.export import ExportSettings, export_run

    settings = ExportSettings(formats, given.quantise, given.weights, given.portable)
    out = Path(given.out)
    export_run(
        composed.config, out, settings, view=View(), allowed=allowed, say=lambda text: print(text)
    )
    print_status(f"wrote {out}; `python {out / 'score.py'}` shows how it is loaded")
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `export`."""
    parser = VerbParser(
        "export",
        "Write the model of a run as one folder that scores raw rows: graphs, transforms,\n"
        "metrics, hashes. It is scored on the run's own test split first, and not written\n"
        "if it is not what was evaluated.",
        examples=("export outputs/dlrm --out model", "export outputs/dlrm --out m --format aoti"),
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the run")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="such as checkpoint.step=last"
    )
    parser.add_argument("--out", metavar="MODEL", help="the folder to write; must not exist")
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        help="pt2 (torch.export, the default), aoti (machine code), onnx; or several: pt2,onnx",
    )
    parser.add_argument(
        "--quantise", metavar="KIND", help="store the tables as fp16, int8 or int4; default: whole"
    )
    parser.add_argument(
        "--weights",
        metavar="WHICH",
        help="ema or trained; default: those that evaluations take (trainer.ema.evaluate)",
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="aoti: for any x86-64-v3 processor, not only for this machine's",
    )
    return parser


def _find_problems(
    folder: str | None,
    out: str | None,
    formats: Sequence[str],
    quantise: str | None,
    weights: str | None,
) -> Iterator[str]:
    """Yield every mistake of the words, before torch is imported."""
    if folder is None or "=" in folder:
        yield "export: name a run: export DIR --out MODEL"
    if out is None:
        yield "export: --out is not set: the folder to write"
    elif Path(out).exists():
        yield f"--out {out}: exists already; nothing was written"
    for format_ in formats:
        if format_ not in FORMATS:
            yield unknown_choice("--format", format_, FORMATS)
    if quantise is not None and quantise not in QUANTISATIONS:
        yield unknown_choice("--quantise", quantise, QUANTISATIONS)
    if weights is not None and weights not in WEIGHTS:
        yield unknown_choice("--weights", weights, WEIGHTS)
    if "onnx" in formats:
        missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
        if missing:
            yield f"--format onnx: needs {', '.join(missing)}: pip install 'runner[export]'"
