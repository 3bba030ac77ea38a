"""`doctor`: what this machine and this installation offer to a run, in some ten lines."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError, wrap_words
from runner.machine.cores import cpu_name, set_thread_environment, usable_cores
from runner.machine.free_memory import available_memory_bytes
from runner.machine.imports import is_installed

# torch -> the matching FBGEMM and TorchRec (https://pypi.org/project/fbgemm-gpu/)
PAIRS = {"2.11": ("1.6", "1.6"), "2.12": ("1.7", "1.7"), "2.13": ("1.8", "1.8")}
# extra of the package -> a module that it installs, and its purpose
EXTRAS = {
    "kafka": ("confluent_kafka", "dataset=kafka"),
    "avro": ("fastavro", "dataset=avro"),
    "http": ("aiohttp", "paths that begin with http"),
    "pandas": ("pandas", "pandas tables in the Python API"),
    "polars": ("polars", "polars tables in the Python API"),
    "serve": ("uvicorn", "serve"),
    "ann": ("faiss", "index --kind hnsw|ivf"),
    "submitit": ("hydra_plugins.hydra_submitit_launcher", "hydra/launcher=submitit_slurm"),
    "export": ("onnx", "export --format onnx"),
    "ray": ("ray", "remote=ray"),
}
_FULL_DISK_BYTES = 5e9
_SHOWN = ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "hydra-core", "pyarrow")


def doctor(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print the hardware and packages that a run would use.

    Returns:
        0; 1 if something would prevent a run.
    """
    make_parser().parse(words)
    is_ill, width = False, shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    for name, value, problem in _findings():
        print(wrap_words(f"{name:<9}{value}", width, indent=9))
        if problem:
            print(wrap_words(f"{'':<9}! {problem}", width, indent=2))
            is_ill |= name in ("packages", "disk", "cache")
    return int(is_ill)


def make_parser() -> VerbParser:
    """Return the parser of the words after `doctor`."""
    return VerbParser(
        "doctor",
        "Show versions, cores, memory, disk, cache and extras, and what is missing or slow here.",
        examples=("doctor",),
    )


def _findings() -> Iterator[tuple[str, str, str | None]]:
    """Yield findings: a name, its value, and the problem if there is one."""
    set_thread_environment(None)
    yield "packages", *_packages()
    cores, load = usable_cores(), os.getloadavg()[0]
    busy = load > 0.75 * cores
    hint = f"the machine is busy (load {load:.1f}): speeds measured now are too low"
    yield "cores", f"{cores} usable of {os.cpu_count()}: {cpu_name()}", hint if busy else None
    yield "memory", f"{available_memory_bytes() / 2**30:.1f} GiB free for this process", None
    begin = time.perf_counter()
    import torch

    try:
        import runner.batch  # noqa: F401  with what a run needs of TorchRec; the import is timed
    except UserError as error:
        yield "packages", "what a run imports", str(error)
        return

    seconds = time.perf_counter() - begin
    packages = shlex.quote(sysconfig.get_path("purelib"))
    slow = f"if bytecode is missing: `python -m compileall -q {packages}`" * (seconds > 10)
    yield (
        "start",
        f"{seconds:.1f} s to import torch and the parts of torchrec that a run needs",
        slow or None,
    )
    yield "gpu", _gpus(), None
    from runner.training.builder.precision_probe import describe_bf16

    torch.set_num_threads(cores)
    yield "bf16", describe_bf16(cpu_name()), None
    yield "disk", *_disk(Path("outputs"), "give another place by hydra.run.dir=...")
    yield "cache", *_cache()
    missing = [name for name, (module, _) in EXTRAS.items() if not is_installed(module)]
    have = ", ".join(name for name in EXTRAS if name not in missing) or "none"
    lines = "; ".join(f"{name} ({EXTRAS[name][1]})" for name in missing)
    yield "extras", f"{have}{f'; not installed: {lines}' if missing else ''}", None


def _packages() -> tuple[str, str | None]:
    from runner.rundir.provenance import package_versions

    versions = package_versions()
    shown = ", ".join(f"{name} {versions[name]}" for name in versions if name in _SHOWN)
    torch_minor = ".".join(versions.get("torch", "").split(".")[:2])
    fbgemm = next((versions[n] for n in ("fbgemm-gpu-cpu", "fbgemm-gpu") if n in versions), None)
    if fbgemm is None:
        return shown, "FBGEMM is missing: pip install fbgemm-gpu-cpu, or fbgemm-gpu for CUDA"
    if {"fbgemm-gpu", "fbgemm-gpu-cpu"} <= versions.keys():
        again = f"pip install --force-reinstall --no-deps fbgemm-gpu-cpu=={fbgemm}"
        return shown, f"two FBGEMMs in one folder: pip uninstall -y fbgemm-gpu && {again}"
    pair = PAIRS.get(torch_minor)
    has = (fbgemm, versions.get("torchrec", ""))
    if pair and not all(v.startswith(f"{p}.") for v, p in zip(has, pair, strict=True)):
        return shown, f"torch {torch_minor} goes with FBGEMM {pair[0]} and TorchRec {pair[1]}"
    return shown, None


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none that torch can use; trainer.device=auto takes the CPU"
    names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    listed = ", ".join(f"{p.name} ({p.total_memory / 2**30:.0f} GiB)" for p in names)
    return f"{listed}, CUDA {torch.version.cuda}"


def _disk(folder: Path, other_place: str) -> tuple[str, str | None]:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return f"{folder}/ cannot be written", other_place
    short = "checkpoints may not fit; checkpoint.keep and `clean` save space"
    return f"{free / 1e9:.0f} GB free for {folder}/", short if free < _FULL_DISK_BYTES else None


def _cache() -> tuple[str, str | None]:
    from runner.machine.cache_folder import cache_root

    root = cache_root()
    files = [path for path in root.rglob("*") if path.is_file()] if root.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    other_place = "give another place by the variable RUNNER_CACHE"
    free, problem = _disk(root, other_place)
    text = f"{size / 1e9:.1f} GB of prepared data in {root} ($RUNNER_CACHE)"
    return f"{text}, {free.split(' for ')[0]}", problem if problem == other_place else None
