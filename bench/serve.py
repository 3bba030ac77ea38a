"""A server under load: closed loops of 1, 8 and 32 clients, then more than it takes.

    python -m bench.serve [--seconds 5] [--folder DIR] [--format pt2|aoti|onnx] [flags of serve]

Each client sends requests one after another over its own connection and compares every answer
with the scorer's. The server's processor time for a request depends least on what else the
machine does. Run and model are kept in the folder and found again there.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.paired import machine, table
from bench.predict import prepare, runner
from runner.serving.scorer import Scorer
from runner.serving.server.columns import LENGTHS, VALID, served_columns

CLIENTS = (1, 8, 32)
TOGETHER = 1e-6  # what a score may differ by if its row was scored with others
PATH = "/v2/models/model/infer"
DATATYPES = {pa.bool_(): "BOOL", pa.float64(): "FP64", pa.float32(): "FP32", pa.string(): "BYTES"}


@dataclass
class Load:
    """What the clients of one measurement have seen."""

    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0


@dataclass(frozen=True)
class Prepared:
    """A request, and the scores that belong to it."""

    body: bytes
    headers: dict[str, str]
    expected: np.ndarray


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of loads, then what overload does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--format", default="pt2")
    given, flags = parser.parse_known_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        model = folder / given.format / "model"
        run = prepare(folder, 20_000, [])
        if not model.exists():
            runner("export", str(run), "--out", str(model), "--format", given.format)
        scorer = Scorer.load(model, trust_native_code=True)
        rows = pq.read_table(folder / "data" / "test").slice(0, 4096)
        flags = ["--format", given.format, "--trust-native-code", *flags]
        print(machine(os.environ.get("OMP_NUM_THREADS", "1")))
        wrong = measure(model, scorer, rows, flags, given.seconds)
        wrong += overload(model, scorer, rows, flags, given.seconds)
    return int(wrong > 0)


def measure(
    model: Path, scorer: Scorer, rows: pa.Table, flags: Sequence[str], seconds: float
) -> int:
    """Print speeds by size, form and number of clients; return the number of wrong answers."""
    lines, wrong = [], 0
    with served(model, flags) as (address, pid):
        for size, binary in ((1, False), (1, True), (64, False), (64, True)):
            requests = make_requests(scorer, rows, size, binary)
            for clients in CLIENTS:
                press(address, requests, clients, 0.5)
                before = processor_s(pid)
                load = press(address, requests, clients, seconds)
                per_request = (processor_s(pid) - before) / len(load.latencies_s)
                wrong += load.wrong + sum(load.statuses.values()) - load.statuses[200]
                p50, p99 = np.quantile(load.latencies_s, (0.5, 0.99)) * 1000
                speed = size * load.statuses[200] / seconds
                lines.append(
                    [f"{clients}", f"{size}", "binary" if binary else "JSON", f"{p50:.2f}"]
                    + [f"{p99:.2f}", f"{speed:,.0f}", f"{per_request * 1000:.2f}", f"{load.wrong}"]
                )
    head = ["clients", "rows", "form", "p50 ms", "p99 ms", "rows/s", "server's CPU ms", "wrong"]
    print(table(head, lines), flush=True)
    return wrong


def overload(
    model: Path, scorer: Scorer, rows: pa.Table, flags: Sequence[str], seconds: float
) -> int:
    """Press a short queue; return wrong answers, and requests that failed afterwards."""
    requests = make_requests(scorer, rows, 64, True)
    with served(model, [*flags, "--queue", "4"]) as (address, _):
        pressed = press(address, requests, 32, seconds)
        after = press(address, requests, 1, seconds)
    total = sum(pressed.statuses.values())
    print(
        f"\n32 clients, a queue of 4: {pressed.statuses[503] / total:.0%} of {total:,} answers "
        f"are 503, {pressed.statuses[200]:,} are scores, others: "
        f"{ {s: n for s, n in pressed.statuses.items() if s not in (200, 503)} or 'none' }, "
        f"wrong: {pressed.wrong}\nafterwards 1 client: {after.statuses[200]:,} scores, "
        f"{sum(after.statuses.values()) - after.statuses[200]} others, wrong: {after.wrong}"
    )
    failed = sum(after.statuses.values()) - after.statuses[200]
    return pressed.wrong + after.wrong + failed


def make_requests(scorer: Scorer, rows: pa.Table, size: int, binary: bool) -> list[Prepared]:
    """Prepare requests of so many rows each."""
    columns = served_columns(scorer.artifact.raw, scorer.artifact.graphs)
    found = []
    for start in range(0, min(rows.num_rows, 64 * size), size):
        part = rows.slice(start, size)
        specs, tail = [], []
        for column in columns:
            values = part[column.name].combine_chunks()
            parts = {column.name: values}
            if column.is_list:
                lengths = pc.list_value_length(values).fill_null(0).cast(pa.int64())
                parts = {column.name: values.flatten(), f"{column.name}{LENGTHS}": lengths}
            if values.null_count and not column.is_list:
                parts = {
                    column.name: pc.fill_null(values, 0),
                    f"{column.name}{VALID}": values.is_valid(),
                }
            for name, array in parts.items():
                kind = DATATYPES.get(array.type, "INT64")
                spec = {"name": name, "datatype": kind, "shape": [len(array)]}
                if binary and kind != "BYTES":
                    array = array.cast(pa.int64()) if kind == "INT64" else array
                    tail.append(array.to_numpy(zero_copy_only=False).tobytes())
                    specs.append({**spec, "parameters": {"binary_data_size": len(tail[-1])}})
                else:
                    specs.append({**spec, "data": array.to_pylist()})
        asks = {"parameters": {"binary_data_output": True}} if binary else {}
        head = json.dumps({"inputs": specs, **asks}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))} if tail else {}
        [expected] = scorer.score(part).values()
        found.append(Prepared(b"".join([head, *tail]), length, expected))
    return found


def press(address: str, requests: Sequence[Prepared], clients: int, seconds: float) -> Load:
    """Let clients send requests for some seconds."""
    load, ends = Load(), time.perf_counter() + seconds
    threads = [
        threading.Thread(target=ask, args=(address, requests[n:] + requests[:n], ends, load))
        for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load


def ask(address: str, requests: Sequence[Prepared], ends: float, load: Load) -> None:
    """One client: the next request goes out when the last is answered."""
    connection = http.client.HTTPConnection(address, timeout=60)
    number = 0
    while time.perf_counter() < ends:
        request = requests[number % len(requests)]
        number += 1
        started = time.perf_counter()
        connection.request("POST", PATH, request.body, request.headers)
        answer = connection.getresponse()
        content = answer.read()
        load.latencies_s.append(time.perf_counter() - started)
        load.statuses[answer.status] += 1
        if answer.status == 200:
            length = answer.headers.get("inference-header-content-length")
            if length is not None:
                scores = np.frombuffer(content[int(length) :], np.float32)
            else:
                scores = np.float32(json.loads(content)["outputs"][0]["data"])
            load.wrong += not np.allclose(scores, request.expected, rtol=TOGETHER, atol=TOGETHER)
    connection.close()


@contextmanager
def served(model: Path, flags: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Serve a model; give the address and the process id."""
    command = [sys.executable, "-m", "runner", "serve", str(model), "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = ""
        for said in process.stderr:
            if said.startswith("serving "):
                break
        else:
            raise SystemExit(f"{' '.join(command)}: {said}")
        yield said.split("http://")[1].strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
