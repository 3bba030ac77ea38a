"""A minimal W&B server that records what it receives and can stop answering, and W&B's own logs."""

from __future__ import annotations

import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK = 1 << 15  # bytes


def sent_records(path: Path) -> list[Any]:
    """Read the log that `wandb sync` sends: records cut into blocks, as in LevelDB's logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record, records = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (room := BLOCK - at % BLOCK) < 7:
            at += room
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            records.append(Record.FromString(record))
            record = b""
    return records


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *, refuse_key: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuse_key = refuse_key
        self.silent = threading.Event()  # if set, requests are read and never answered
        self.ended = threading.Event()
        self.runs: list[dict[str, Any]] = []  # variables of each upsert
        self.history: list[dict[str, Any]] = []
        self.exit_codes: list[int] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.silent.is_set():
            self.server.ended.wait()
            return
        if self.server.refuse_key:
            self.answer(401, {"errors": [{"message": "bad key"}]})
        elif self.path.endswith("/graphql"):
            self.answer(200, {"data": self.graphql(json.loads(body))})
        elif body:
            self.answer(200, self.stream(json.loads(body)))
        else:  # an upload in chunks, which is ignored
            self.close_connection = True
            self.answer(200, {})

    def graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        query, variables = request["query"], request.get("variables") or {}
        project = {"id": "P", "name": "p", "entity": {"id": "E", "name": "me"}}
        if "UpsertBucket" in query:
            self.server.runs.append(variables)
            names = {"id": "R", "name": variables["name"], "displayName": variables["name"]}
            rest = {"description": None, "config": "{}", "sweepName": None, "historyLineCount": 0}
            bucket = {**names, **rest, "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "RunResumeStatus" in query:
            return {"model": {**project, "bucket": None}}
        if "CreateRunFiles" in query:
            return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": []}}
        return {}

    def stream(self, request: dict[str, Any]) -> dict[str, Any]:
        for name, chunk in (request.get("files") or {}).items():
            if name == "wandb-history.jsonl":
                self.server.history += [json.loads(line) for line in chunk["content"]]
        if request.get("complete"):
            self.server.exit_codes.append(request["exitcode"])
        return {}

    def answer(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
