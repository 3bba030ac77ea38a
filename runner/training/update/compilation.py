"""`trainer.compile`: compiles the dense half such that a resume repeats its results."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.fx.experimental._config
from torch import Tensor

from runner.batch import Batch, Embeddings, Prediction, dense_rows
from runner.errors import ConfigError, describe_error
from runner.machine.cache_folder import cache_root
from runner.machine.cores import cpu_name
from runner.models.layers.mlp import RowSequential
from runner.models.layers.recommender import Recommender
from runner.models.layers.row_draws import RowDraws, row_draws
from runner.models.layers.update_state import UpdateState

_COMPILERS = ("g++", "clang++", "c++")
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
# bytes of a 64-bit ELF head: where the table of sections begins, size and number of its entries
_SECTION_TABLE = ((40, 48), (58, 60), (60, 62))


class CompiledDense:
    """A model's dense half, compiled for training; evaluations run it as it is written.

    One kernel serves every batch size. The code that the compiler writes for it also depends on the
    sizes that it meets first: which loops threads share, how an end is treated. A process that
    resumes at the short batch of an epoch's end would get other kernels than one that began with a
    full batch, and differ in the last bits. So the first call traces full batches, whatever it has.
    Other sizes that depend on the data, such as places of histories, stay those of the call. Code
    also depends on the memory layout of inputs, so that views are copied.

    Args:
        model: whose `dense` it is.
        num_rows: of a full batch.
    """

    def __init__(self, model: Recommender, num_rows: int) -> None:
        self._model, self._num_rows = model, num_rows
        self._eager = model.dense
        for module in model.modules():
            if isinstance(module, UpdateState | RowSequential):
                for name in module.uncompiled:  # no decorator, since it would import the compiler
                    method = getattr(module, name)
                    setattr(module, name, torch.compiler.disable(method))  # type: ignore[no-untyped-call]
        self._compiled = torch.compile(model.dense, dynamic=True)
        self._is_traced = False

    def __call__(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        if not self._model.training or len(batch.labels_BT) == 1:
            return self._eager(embeddings, batch)
        if not self._is_traced:
            self._trace(embeddings, batch)
            self._is_traced = True
        return self._run(embeddings, batch)

    def _run(self, embeddings: Embeddings, batch: Batch) -> Prediction:
        embeddings = replace(
            embeddings,
            pooled_BE=_plain(embeddings.pooled_BE),
            sequences_BLD=tuple(map(_plain, embeddings.sequences_BLD)),
            per_row={name: _plain(x) for name, x in embeddings.per_row.items()},
        )
        batch = replace(
            batch,
            dense_BD=_plain(batch.dense_BD),
            labels_BT=_plain(batch.labels_BT),
            weights_B=_plain(batch.weights_B),
            rows_B=_plain(batch.rows_B),
            groups_BG=_plain(batch.groups_BG),
        )
        from torch._dynamo.exc import BackendCompilerFailed  # is there by now

        try:
            with torch.fx.experimental._config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
                return self._compiled(embeddings, batch)
        except BackendCompilerFailed as error:
            lines = describe_error(error.inner_exception).splitlines()
            errors = [line for line in lines if "error: " in line] or lines
            raise RuntimeError(
                f"trainer.compile=true: {errors[0]}; what is compiled is "
                f"written to {os.environ.get(_CACHE)} and {tempfile.gettempdir()}, on CPU by the "
                "compiler that CXX names; trainer.compile=false compiles nothing"
            ) from error

    def _trace(self, embeddings: Embeddings, batch: Batch) -> None:
        """Collective. Run the rows repeated to a full batch, with no effect on the run."""
        device = batch.labels_BT.device
        rows_N = torch.arange(self._num_rows, device=device) % len(batch.labels_BT)
        full = dense_rows(batch, rows_N)
        own_draws = row_draws(RowDraws(0, 0, self._num_rows))  # of what is run as it is written
        with own_draws, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self._run(embeddings.detached(rows_N), full)
        for module in self._model.modules():
            if isinstance(module, UpdateState):
                module.forget_update()


def _plain(x: Tensor) -> Tensor:
    """Return x, or a copy if it is a view of a wider tensor, or empty, with arbitrary strides."""
    if x.is_contiguous() and x.storage_offset() == 0 and x.numel():
        return x
    return x.clone(memory_format=torch.contiguous_format)


def compile_dense(model: Recommender, device: torch.device, num_rows: int) -> None:
    """Replace the model's `dense` by a version that is compiled in training, in place.

    The names of the parameters stay. Results differ from eager ones by rounding. Compiled code is
    kept in the cache, so that a later process loads it instead of compiling, in a folder for each
    version of torch, processor, number of threads and batch size, on which it depends.
    `$TORCHINDUCTOR_CACHE_DIR` overrides the folder.

    Args:
        model: gets another `dense`.
        num_rows: that the dense half takes at once, at most.

    Raises:
        ConfigError: if the compiler that the device needs is not installed, or the cache cannot be
            written.
    """
    chosen = os.environ.get("CXX")
    candidates = [chosen] if chosen else _COMPILERS
    if device.type == "cpu" and not any(map(shutil.which, candidates)):
        raise ConfigError(
            "trainer.compile=true: needs a C++ compiler on CPU, and there is none of "
            f"{', '.join(candidates)}; trainer.compile=false needs none"
        )
    try:  # it takes two seconds, so only where it is needed, and makes the cache's folder
        import torch._inductor.config
    except OSError as error:
        raise ConfigError(_unwritable(os.environ.get(_CACHE), error, _CACHE)) from error
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    from torch.utils._triton import has_triton

    if device.type == "cuda" and not has_triton():
        raise ConfigError("trainer.compile=true: needs Triton on CUDA: pip install triton")
    # no pool of compiling processes, which would outlive a run that is killed
    torch._inductor.config.compile_threads = 1
    facts = (torch.__version__, cpu_name(), torch.get_num_threads(), num_rows)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    folder, default = cache_root() / "compiled" / digest, default_cache_dir()
    folder_set = os.environ.get(_CACHE, default)  # torch may have set it to its default
    if folder_set == default or Path(folder_set).parent == folder.parent:  # no user has chosen it
        try:
            remove_torn_code(folder)
        except OSError as error:
            raise ConfigError(_unwritable(folder, error, "RUNNER_CACHE")) from error
        os.environ[_CACHE] = str(folder)
    model.dense = CompiledDense(model, num_rows)  # type: ignore[method-assign]


def _unwritable(folder: Path | str | None, error: OSError, variable: str) -> str:
    return (
        f"trainer.compile=true: cannot keep what is compiled in {folder}: {error.strerror}; "
        f"{variable} names another folder"
    )


def remove_torn_code(folder: Path) -> None:
    """Remove files that a kill or a power cut has cut short, in the compiler's cache.

    The compiler would load any file with the name of its result, and every later run would fail.
    Files that another process is writing under its lock stay.
    """
    locks = folder / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    for path in [path for path in folder.rglob("*.*") if path.parent != locks]:
        with open(locks / f"{path.name.partition('.')[0]}.lock", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if path.is_file() and not _is_whole(path):
                path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """Return whether a file has content, and an ELF library its last part, the table of sections.

    The ELF header says where that is; libraries of macOS are not checked.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if path.suffix != ".so" or not head.startswith(b"\x7fELF"):
        return len(head) > 0
    place, size, count = (int.from_bytes(head[a:b], "little") for a, b in _SECTION_TABLE)
    return len(head) == 64 and place + size * count <= path.stat().st_size
