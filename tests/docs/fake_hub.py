#!/usr/bin/env python3
"""fake_hub.py FOLDER: serves FOLDER/{models,datasets}/ORG/NAME/FILE on 127.0.0.1:8471, as far as `hf download` asks for it.

The real hub can't be reached from a test. HF_ENDPOINT makes huggingface_hub use this one.
"""
import hashlib
import http.server
import json
import pathlib
import re
import sys

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_id(file):
    data = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, body, headers):
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if found := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(/(?:revision|tree)/\w+)?", path):
            self.tree(found[1], found[2], "/tree/" in path)
        elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/\w+/(.+)", path):
            self.file(pathlib.Path("datasets" if found[1] else "models") / found[2] / found[3])
        else:
            self.missing()

    do_HEAD = do_GET

    def missing(self):
        self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def tree(self, kind, name, is_listing):
        folder = root / kind / name
        if not folder.is_dir():
            return self.missing()
        files = [(each, str(each.relative_to(folder))) for each in sorted(folder.rglob("*")) if each.is_file()]
        if is_listing:
            body = [{"type": "file", "path": path, "size": each.stat().st_size, "oid": git_id(each)} for each, path in files]
        else:
            body = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for _, path in files]}
        self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def file(self, path):
        file = root / path
        if not file.is_file():
            return self.missing()
        data = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(part[1]), min(int(part[2] or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            return self.answer(206, data[first : last + 1], headers)
        self.answer(200, data, headers)


root = pathlib.Path(sys.argv[1])
http.server.ThreadingHTTPServer(("127.0.0.1", 8471), Handler).serve_forever()
