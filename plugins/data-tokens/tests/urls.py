#!/usr/bin/env python3
"""Token files behind HTTP: the same losses as from the disk, whatever the server does that may pass, and a failure by name
for what may not.

    urls.py HEDDLE
"""
import array
import http.server
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time

HEDDLE = pathlib.Path(sys.argv[1]).resolve()
PATIENCE = float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
TOKENS = 400_000  # uint16: some blocks of 128 KiB
FILES = {}        # name -> bytes
SICK = set()      # names that fail behind their first block: /sick/NAME
SEEN = {}         # (fault, name, range) -> requests
LOCK = threading.Lock()
passed = failed = 0


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Connections that the client resets are part of the test."""


class Server(http.server.BaseHTTPRequestHandler):
    """/FAULT/NAME: the file NAME, with a fault. Everything in order: /ok/NAME."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def refuse(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        fault, name = self.path.split("?")[0].strip("/").split("/", 1)
        data = FILES.get(name)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        with LOCK:
            key = (fault, name, asked and asked[1])
            nth = SEEN[key] = SEEN.get(key, 0) + 1
        if data is None:
            return self.refuse(404)
        if fault == "redirect":
            self.send_response(302)
            self.send_header("Location", f"/ok/{name}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if fault == "busy" and nth <= 2:
            return self.refuse(503)
        if int(asked[1]) > 0 and (fault == "broken" or fault == "sick" and name in SICK or fault == "once" and name in SICK and nth == 1):
            return self.refuse(500)
        if fault == "forbidden":
            return self.refuse(403)
        first, last = (int(asked[1]), min(int(asked[2]), len(data) - 1)) if asked else (0, len(data) - 1)
        if first >= len(data):
            return self.refuse(416)
        body = data[first:last + 1]
        whole = fault == "whole" or not asked
        if whole:
            body = data
        self.send_response(200 if whole else 206)
        if not whole:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("ETag", '"other"' if fault == "changed" and first > 0 else '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault == "cut" and nth == 1:  # the connection ends in the middle
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
            return
        if fault == "stall" and nth == 1:  # longer than data.http_timeout: released by the client's closing
            self.wfile.write(body[:100])
            self.wfile.flush()
            self.connection.settimeout(60)
            try:
                self.connection.recv(1)
            except OSError:
                pass
            self.close_connection = True
            return
        try:
            for k in range(15 if fault == "slow" and first == 0 else 0):  # never silent, and longer than data.http_timeout in all
                self.wfile.write(body[k:k + 1])
                self.wfile.flush()
                time.sleep(0.1)
            self.wfile.write(body[15:] if fault == "slow" and first == 0 else body)
        except OSError:
            self.close_connection = True


def make_files(folder):
    tokens, state = array.array("H"), 12345
    for _ in range(TOKENS):
        state = (state * 1103515245 + 12345) % 2**31
        tokens.append(state >> 16 & 255)
    data = tokens.tobytes()
    head = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({TOKENS},), }}".encode()
    head += b" " * (63 - (10 + len(head)) % 64) + b"\n"
    FILES["a.bin"] = data
    FILES["a.npy"] = b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head + data
    FILES["m.bin"] = data
    half = TOKENS // 2
    FILES["m.idx"] = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<2i", half, half) +
                      struct.pack("<2q", 0, 2 * half) + struct.pack("<3q", 0, 1, 2))
    FILES["text.jsonl"] = b'{"text": "In the beginning"}\n' * 100
    FILES["text.bin"] = b"<html>Not found, but with status 206, as some caches do it.</html>\n" * 100
    for k in range(4):
        FILES[f"s{k}.bin"] = data[k * len(data) // 4:(k + 1) * len(data) // 4]
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    FILES["empty.bin"] = b""


def train(folder, data, *more, ranks=1, again=False):
    """(exit code, losses, output). again: the job goes on."""
    metrics = folder / "metrics.jsonl"
    if not again:
        metrics.unlink(missing_ok=True)
    job = [f"data.train={data}", "job.name=http", "job.steps=6", "model.use=transformer", "model.family=gpt2", "model.layers=1",
           "model.hidden=16", "model.heads=2", "model.vocab=256", "data.seq_len=32", "data.batch=4", "optimizer.use=adamw",
           "optimizer.lr=1e-3", "comm.use=shm", "device.use=cpu", "device.threads=1", "data.http_block=128KiB", "data.http_cache=1MiB",
           f"launch.ranks={ranks}", f"metrics.jsonl={metrics}"]
    (folder / "job.yaml").write_text("{}\n")
    done = subprocess.run([HEDDLE, "train", "job.yaml", *job, *more], cwd=folder, capture_output=True, text=True, timeout=120 * PATIENCE)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    return done.returncode, [row["loss"] for row in rows if "loss" in row], done.stdout + done.stderr


def check(name, good, detail=""):
    global passed, failed
    passed, failed = passed + good, failed + (not good)
    if not good:
        print(f"FAILED {name}: {detail}")


def same(folder, name, local, url, *more, ranks=1, words=()):
    want = train(folder, folder / local, *more, ranks=ranks)
    got = train(folder, url, *more, ranks=ranks)
    check(name, want[0] == got[0] == 0 and len(want[1]) == 6 and want[1] == got[1] and all(w in got[2] for w in words),
          f"{want} is not {got}")


def without_libcurl(folder, url):
    """Only a URL needs it: where it cannot be loaded, files are read as ever, and a URL is refused by name."""
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
        (folder / name).write_text("no library")
    os.environ["LD_LIBRARY_PATH"] = str(folder)
    check("a file without libcurl", train(folder, folder / "a.bin")[0] == 0)
    refused(folder, "a URL without libcurl", url, 2, "data.train", "/ok/a.bin: libcurl, which reads URLs, cannot be loaded (", "install libcurl")
    del os.environ["LD_LIBRARY_PATH"]


def refused(folder, name, url, code, *words, more=()):
    got = train(folder, url, *more)
    check(name, got[0] == code and all(w in got[2] for w in words), got)


def other_tokenizer(folder, at):
    """NAME.meta.json beside NAME.bin says which tokenizer made the tokens, as it does on a disk."""
    def meta(tokens, digest):
        return json.dumps({"tokens": tokens, "arguments": {"--tokenizer": digest}, "tokenizer": f"{digest}.json"}).encode()

    FILES["s0.meta.json"], FILES["s1.meta.json"] = meta(TOKENS // 4, "aa"), meta(TOKENS // 4, "bb")
    urls = f"[{at}/ok/s0.bin?key=hush, {at}/ok/s1.bin]"
    refused(folder, "tokens of two tokenizers", urls, 2, "/ok/s1.bin are by bb.json (its .meta.json), and those of data.train, ",
            "/ok/s0.bin, by aa.json: their ids differ")
    (folder / "mine.json").write_text("{}")
    refused(folder, "tokens of another tokenizer", f"{at}/ok/s1.bin", 2, "mine.json is not what made the tokens of data.train, ",
            "/ok/s1.bin: that was bb.json", more=["data.tokenizer=mine.json"])
    FILES["s1.meta.json"] = meta(7, "bb")
    check("a meta of other tokens", train(folder, urls)[0] == 0)
    got = train(folder, f"{at}/busy/s0.bin", "data.check_tokens=0")
    check("a meta that cannot be read", got[0] == 0 and "s0.meta.json: bytes" in got[2] and "so it is not known which tokenizer" in got[2], got)
    del FILES["s0.meta.json"], FILES["s1.meta.json"]


def shards(folder, at):
    """Files that cannot be read are skipped by all ranks, from the same sequence on, on any mesh, and after a resume."""
    def urls(fault):
        return "[" + ", ".join(f"{at}/{fault}/s{k}.bin" for k in range(4)) + "]"

    skip = ["data.on_error=skip", "data.check_tokens=0", "data.http_retries=0", "job.deterministic=exact", "data.micro_batch=1"]
    files = [str(folder / f"s{k}.bin") for k in range(4)]
    whole = train(folder, urls("sick"), *skip)
    check("no file is skipped", whole[0] == 0 and whole == (0, train(folder, str(files), *skip)[1], whole[2]), whole)
    SICK.add("s2.bin")
    one = train(folder, urls("sick"), *skip)
    long = train(folder, urls("sick"), *skip, "job.steps=12")
    check("a file is skipped", one[0] == 0 and len(one[1]) == 6 and one[1] != whole[1] and one[2].count("/sick/s2.bin") == 1 and
          "skipped from sequence" in one[2], one)
    two = train(folder, urls("sick"), *skip, ranks=2)
    check("two ranks skip it alike", two[:2] == one[:2], (one, two))
    once = train(folder, urls("once"), *skip, ranks=2)
    check("where one of them can read it, too", once[:2] == one[:2], (one, once))
    save = [*skip, "checkpoint.dir=shards"]
    first = train(folder, urls("sick"), *save)
    SICK.clear()
    rest = train(folder, urls("sick"), *save, "job.steps=12", ranks=2, again=True)
    check("so they do after a resume, where it can be read again", first[0] == rest[0] == 0 and len(rest[1]) == 12 and rest[1] == long[1],
          (long, first, rest))
    (folder / "gone").mkdir()
    for k in (0, 1, 3):
        os.link(files[k], folder / "gone" / f"s{k}.bin")
    listed = [str(folder / "gone" / f"s{k}.bin") for k in range(4)]
    left = train(folder, str([path for path in listed if not path.endswith("s2.bin")]), *skip)
    check("a missing file is skipped", train(folder, str(listed), *skip)[:2] == left[:2] and left[0] == 0, left)
    check("a folder is its files", train(folder, folder / "gone", *skip)[:2] == left[:2], left)
    check("a pattern is its files", train(folder, folder / "gone/s?.bin", *skip, ranks=2)[:2] == left[:2], left)
    got = train(folder, str(listed), "data.check_tokens=0")
    check("without on_error it is refused", got[0] == 2 and "s2.bin" in got[2], got)
    got = train(folder, str(listed[2:3]), *skip)
    check("nothing is left", got[0] == 2 and "no sequence is left" in got[2], got)
    got = train(folder, str(listed), *skip, "data.documents=pack", "data.eod=0")
    check("not with pack", got[0] == 2 and "data.on_error: skip" in got[2], got)
    got = train(folder, folder / "gone/*.npy", *skip)
    check("a pattern without files", got[0] == 2 and "no file matches this pattern" in got[2], got)
    kept = [*skip, "checkpoint.dir=kept"]
    (folder / "four").mkdir()
    for k in range(4):
        os.link(files[k], folder / "four" / f"s{k}.bin")
    started = train(folder, folder / "four", *kept, "job.steps=3")
    (folder / "four/s1.bin").unlink()
    rest = train(folder, folder / "four", *kept, ranks=2, again=True)
    check("a file that is gone after a resume keeps its place", rest[0] == 0 and rest[1][:3] == started[1] and "s1.bin: is not there" in rest[2] and
          "data: 400,000 tokens" in rest[2], rest)
    got = train(folder, folder / "four", *kept, "data.on_error=stop", "job.steps=8", again=True)
    check("with stop its absence is said", got[0] == 0 and "other files than when" in got[2], got)
    mix = f"[{{path: {folder / 'gone'}, weight: 0.5}}, {{path: {files[2]}, weight: 0.5}}]"
    check("a folder in a mix", train(folder, mix, *skip)[0] == 0, mix)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        make_files(folder)
        server = Quiet(("127.0.0.1", 0), Server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        # A server of this machine is meant, whatever proxies there are.
        os.environ["no_proxy"] = "127.0.0.1"
        same(folder, "uint16", "a.bin", f"{at}/ok/a.bin")
        same(folder, "in order", "a.bin", f"{at}/ok/a.bin", "data.shuffle=false")
        same(folder, "npy", "a.npy", f"{at}/ok/a.npy")
        same(folder, "megatron", "m.bin", f"{at}/ok/m.bin?part=1")
        check("the index was asked for", SEEN.get(("ok", "m.idx", "0"), 0) > 0, SEEN)
        same(folder, "two ranks", "a.bin", f"{at}/ok/a.bin", ranks=2)
        same(folder, "a mix", "a.bin", f"[{at}/ok/a.bin]")
        same(folder, "a redirection", "a.bin", f"{at}/redirect/a.bin")
        same(folder, "503 twice", "a.bin", f"{at}/busy/a.bin", "data.check_tokens=0", "data.shuffle=false", words=["503", "trying again, 2 of 6"])
        same(folder, "a connection that ends early", "a.bin", f"{at}/cut/a.bin", "data.check_tokens=0", "data.shuffle=false", words=["trying again, 1 of 6"])
        same(folder, "a stalled connection", "a.bin", f"{at}/stall/a.bin", "data.check_tokens=0", "data.http_timeout=1s", "data.shuffle=false",
             words=["trying again, 1 of 6"])
        same(folder, "a slow connection", "a.bin", f"{at}/slow/a.bin", "data.check_tokens=0", "data.http_timeout=1s", "data.shuffle=false",
             words=["/slow/a.bin: slow: bytes 0 to"])
        refused(folder, "404", f"{at}/ok/no.bin", 2, "data.train", "/ok/no.bin", "404")
        refused(folder, "403", f"{at}/forbidden/a.bin", 2, "403")
        refused(folder, "a server without ranges", f"{at}/whole/a.bin", 2, "ignores ranges")
        refused(folder, "an empty file", f"{at}/ok/empty.bin", 2, "empty")
        refused(folder, "text for tokens", f"{at}/ok/text.bin", 2, "begins with text")
        refused(folder, "text", f"{at}/ok/text.jsonl", 2, "is JSON: text is read of files, not of URLs: download it first")
        refused(folder, "a file that changes", f"{at}/changed/a.bin", 2, "has changed on the server")
        refused(folder, "500 for good", f"{at}/broken/a.bin", 2, "500", "trying again, 1 of 1", more=["data.http_retries=1"])
        refused(folder, "a port on which nobody listens", "http://127.0.0.1:9/a.bin", 2, "127.0.0.1", more=["data.http_retries=0"])
        refused(folder, "what is secret in a URL", f"http://me:hush@127.0.0.1:{server.server_port}/ok/no.bin?key=hush", 2,
                "127.0.0.1")
        got = train(folder, f"http://me:hush@127.0.0.1:{server.server_port}/ok/no.bin?key=hush")
        check("what is secret in a URL is not told", not re.search(r"FAILED|error.*hush", got[2]), got)
        other_tokenizer(folder, at)
        refused(folder, "s3", "s3://bucket/a.bin", 2, "s3://bucket/a.bin", "URL")
        shards(folder, at)
        without_libcurl(folder, f"{at}/ok/a.bin")
        server.shutdown()
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
