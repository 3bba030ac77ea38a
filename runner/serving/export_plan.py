"""The plan of an export: every mistake of its words is told here. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from runner.config.compose import ComposedConfig, compose_job
from runner.errors import raise_combined, unknown_choice
from runner.launch import check_composed
from runner.serving.artifact import FORMATS, QUANTISATIONS

WEIGHTS = ("ema", "trained")
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# The graph is traced on the CPU in one process, in float32 as it is.
_FIXED = ("trainer.device=cpu", "trainer.num_processes=1", "trainer.compile=false")
_AVERAGES = {
    None: (),
    "ema": ("trainer.ema.evaluate=true",),
    "trained": ("trainer.ema.evaluate=false",),
}


@dataclass(frozen=True)
class ExportSettings:
    """What to write.

    Args:
        formats: pt2, aoti, onnx.
        quantise: store the tables as fp16, int8 or int4; None: as they are.
        weights: ema or trained; None: those that evaluations take.
        portable: whether machine code is for any x86-64-v3 processor, not only for this machine's.
    """

    formats: tuple[str, ...] = ("pt2",)
    quantise: str | None = None
    weights: str | None = None
    portable: bool = False


def plan_export(
    folder: str | None,
    out: str | None,
    settings: ExportSettings,
    overrides: Sequence[str],
    allowed: Sequence[str],
) -> ComposedConfig:
    """Check what is asked for, and compose the evaluation that the artifact is held against.

    Args:
        folder: the run; None if none was named.
        out: the folder to write; None if none was named.
        settings: what to write.
        overrides: settings that differ from those of the run, such as `checkpoint.step=last`.
        allowed: packages that a `_target_` may name.

    Raises:
        UserError: with every mistake.
    """
    raise_combined(_find_problems(folder, out, settings))
    composed = compose_job(
        ["loop=eval", f"run={folder}", *_FIXED, *_AVERAGES[settings.weights], *overrides]
    )
    check_composed(composed, allowed)
    return composed


def _find_problems(folder: str | None, out: str | None, settings: ExportSettings) -> Iterator[str]:
    if folder is None or "=" in folder:
        yield "export: name a run: export DIR --out MODEL"
    if out is None:
        yield "export: --out is not set: the folder to write"
    elif Path(out).exists():
        yield f"--out {out}: exists already; nothing was written"
    for format_ in settings.formats:
        if format_ not in FORMATS:
            yield unknown_choice("--format", format_, FORMATS)
    if settings.quantise is not None and settings.quantise not in QUANTISATIONS:
        yield unknown_choice("--quantise", settings.quantise, QUANTISATIONS)
    if settings.weights is not None and settings.weights not in WEIGHTS:
        yield unknown_choice("--weights", settings.weights, WEIGHTS)
    if "onnx" in settings.formats:
        missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None]
        if missing:
            yield f"--format onnx: needs {', '.join(missing)}: pip install 'runner[export]'"
