"""Scores rows with the exported model in this folder. Needs numpy, and torch or onnxruntime.

Copy what you need: nothing here comes from the project that trained the model. `schema.json` says
which inputs a graph takes, and how raw columns become ids (`runner.serving.Scorer` does that).
The example below is of rows whose outputs are known. Machine code needs safetensors, too.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SUFFIXES = {"pt2": ".pt2", "aoti": ".aoti.pt2", "onnx": ".onnx"}


def verify() -> dict[str, Any]:
    """Check that every file is what was exported."""
    manifest: dict[str, Any] = json.loads((HERE / "manifest.json").read_text())
    for name, digest in manifest["files"].items():
        with (HERE / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                sys.exit(f"{name}: damaged")
    return manifest


def load(graph: str, format_: str) -> Callable[[list[Any]], list[Any]]:
    """Return a function from a list of arrays, the inputs, to a list of arrays, the outputs."""
    path = str(HERE / (graph + SUFFIXES[format_]))
    if format_ == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        return lambda arrays: session.run(None, dict(zip(names, arrays)))
    import torch

    module: Any
    if format_ == "aoti":  # machine code: load it only if you trust who has built it
        from safetensors.torch import load_file
        from torch._inductor import aoti_load_package

        module = aoti_load_package(path)
        weights = load_file(HERE / f"{graph}.aoti.safetensors")
        constants = {name: weights[name] for name in module.get_constant_fqns()}
        module.load_constants(constants, check_full_update=True)
    else:  # torch.export.load trusts the file, too
        with warnings.catch_warnings():  # torch 2.11 lets tensors lie in what it has read
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            module = torch.export.load(path).module(check_guards=False)

    def run(arrays: list[Any]) -> list[Any]:
        with torch.no_grad():
            return [out.numpy() for out in module(*map(torch.from_numpy, arrays))]

    return run


def main() -> None:
    """Run the example in every format."""
    manifest = verify()
    schema = json.loads((HERE / "schema.json").read_text())
    example = np.load(HERE / "example.npz", allow_pickle=False)
    for format_ in manifest["formats"]:
        for graph in schema["graphs"]:
            name = graph["name"]
            run = load(name, format_)
            outputs = run([example[f"{name}/{i}"] for i in graph["inputs"]])
            for output, values in zip(graph["outputs"], outputs):
                known = example[f"{name}/{format_}/{output}"]
                print(f"{format_} {name}.{output}:", values[:2].tolist())
                if not np.allclose(values, known, rtol=1e-3, atol=1e-4):
                    sys.exit(f"not what was exported: {known[:2].tolist()}")


if __name__ == "__main__":
    main()
