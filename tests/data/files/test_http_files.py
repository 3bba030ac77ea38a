"""Files of a web server that says that they are compressed, or sends other bytes than asked for."""

from __future__ import annotations

import gzip
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from runner.data.files.file_list import find_files

TEXT = b"".join(b"%d,%d\n" % (n, n * n) for n in range(20_000))
PACKED = gzip.compress(TEXT, mtime=0)


class Handler(BaseHTTPRequestHandler):
    """`/ranges/` serves ranges, `/whole/` does not; `/short/` drops the last byte of long ones."""

    def do_GET(self):
        kind = self.path.split("/")[1]
        content = TEXT if kind == "short" else PACKED
        wanted = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted and kind != "whole":
            first, last = map(int, wanted.groups())
            self.send_response(206)
            part = content[first : last + (kind != "short" or last == 0)]
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        else:
            self.send_response(200)
            part = content
        if kind != "short":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def address():
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("kind", ["ranges", "whole"])
@pytest.mark.parametrize(("name", "content"), [("x.csv.gz", PACKED), ("x.csv", TEXT)])
def test_a_file_that_is_sent_as_compressed_has_the_bytes_that_its_name_says(
    address, kind, name, content
):
    [file] = find_files(f"{address}/{kind}/{name}", "csv", key="dataset.path")
    with file.open() as opened:
        assert opened.read() == content
    assert file.size() == len(content)


def test_hidden_and_unfinished_files_of_a_folder_are_left_out_at_any_address():
    fsspec = pytest.importorskip("fsspec")
    memory, names = fsspec.filesystem("memory"), ["a.csv", "sub/b.csv"]
    for name in [*names, ".a.csv", "_temporary/0/c.csv", "sub/_b.csv", "sub/.d/e.csv"]:
        memory.pipe(f"/half/_up/{name}", TEXT)
    found = find_files("memory://half/_up/", "csv", key="dataset.path")
    assert [file.path for file in found] == [f"/half/_up/{name}" for name in names]


def test_a_server_that_sends_too_few_bytes_is_told_with_their_number(address):
    [file] = find_files(f"{address}/short/x.csv", "csv", key="dataset.path")
    with file.open() as opened, pytest.raises(OSError, match=r"server sent \S+ bytes of \S+\)"):
        opened.read()
