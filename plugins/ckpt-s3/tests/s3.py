#!/usr/bin/env python3
"""ckpt-s3 against moto's server of S3, with a proxy before it that checks each request's signature and digests as botocore makes
them, and plants faults: what every store promises, jobs that save, die and resume, servers that fail, wrong settings.

    s3.py HEDDLE HEDDLE_TEST VENV

VENV is made of requirements.txt where it is missing; where that is not possible, the suite is skipped and says so.
"""
import base64
import datetime
import gc
import hashlib
import http.server
import io
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

HEDDLE, HEDDLE_TEST, VENV = (pathlib.Path(os.path.abspath(a)) for a in sys.argv[1:4])
HERE = pathlib.Path(__file__).resolve().parent
PYTHON = VENV / "bin" / "python3"
PATIENCE = float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
SKIPPED = 77


def enter_venv():
    """This process goes on under the venv's Python. What is half made is made again."""
    made, wants = VENV / "made", (HERE / "requirements.txt").read_text(encoding="ascii")
    if not made.exists() or made.read_text(encoding="ascii") != wants:
        shutil.rmtree(VENV, ignore_errors=True)
        for command in ([sys.executable, "-m", "venv", VENV], [PYTHON, "-m", "pip", "install", "-q", "--no-compile", "-r", HERE / "requirements.txt"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print("skipped: a server of S3 cannot be installed here:", (done.stderr or done.stdout).strip()[-300:])
                sys.exit(SKIPPED)
        made.write_text(wants, encoding="ascii")
    perturb = os.environ.pop("MALLOC_PERTURB_", "")  # meson's, for the programs under test: it makes moto half as fast
    os.execv(PYTHON, [PYTHON, *sys.argv, "in-venv", perturb])


if sys.argv[4:5] != ["in-venv"]:
    enter_venv()

# pylint: disable=wrong-import-position,import-error
import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto import backends
from moto.server import DomainDispatcherApplication, ThreadedMotoServer, create_backend_app
from werkzeug.test import run_wsgi_app

KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token+of=test"
LOCK = threading.Lock()
FAULTS = []  # functions of a request that answer it, or return None
SEEN = []    # "METHOD /path?query" of each request
WRONG = []   # what a request has that botocore would not
passed = failed = 0
os.chdir(tempfile.mkdtemp(prefix="heddle-s3-"))
for name in [n for n in os.environ if n.startswith("AWS_") or n.lower().endswith("_proxy")]:
    del os.environ[name]


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """Connections that are cut are part of the test."""


def signature_of(request, body):
    """As botocore signs the same request at the same time."""
    signed = re.search(r"SignedHeaders=([^,]+)", request.headers["Authorization"])[1].split(";")
    headers = {h: request.headers[h] for h in signed if h not in ("host", "x-amz-date", "x-amz-security-token")}
    again = AWSRequest(request.command, f"http://{request.headers['Host']}{request.path.split('?')[0]}", data=body, headers=headers)
    again.url = f"http://{request.headers['Host']}{request.path}"
    when = request.headers["X-Amz-Date"]
    again.context["timestamp"] = when
    again.headers["X-Amz-Date"] = when
    if "x-amz-security-token" in signed:
        again.headers["x-amz-security-token"] = TOKEN
    auth = S3SigV4Auth(Credentials(KEY, SECRET), "s3", "us-east-1")
    text = auth.canonical_request(again)
    return auth.signature(auth.string_to_sign(again, text), again)


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, code, headers=()):
        self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>of the test</Message></Error>".encode(), headers)

    def check(self, body):
        """What is wrong with a request; None."""
        told = re.search(r"Credential=([^/]+).*Signature=([0-9a-f]+)", self.headers.get("Authorization", ""))
        if not told or told[1] != KEY:
            return "InvalidAccessKeyId"
        if self.headers.get("x-amz-content-sha256") != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        kept = self.headers.get("x-amz-checksum-sha256")
        if (kept or body) and kept != base64.b64encode(hashlib.sha256(body).digest()).decode():
            return "BadDigest"
        return None if signature_of(self, body) == told[2] else "SignatureDoesNotMatch"

    def forward(self, body):
        """To moto's application, as its server hands requests to it, but without a connection and a thread for each."""
        path, _, query = self.path.partition("?")
        environ = {f"HTTP_{k.upper().replace('-', '_')}": v for k, v in self.headers.items()} | {
            "REQUEST_METHOD": self.command, "SCRIPT_NAME": "", "PATH_INFO": urllib.parse.unquote(path, "latin-1"), "QUERY_STRING": query,
            "RAW_URI": self.path, "REQUEST_URI": self.path, "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": str(MOTO), "REMOTE_ADDR": "127.0.0.1", "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": False,
            "wsgi.run_once": False}
        data, status, headers = run_wsgi_app(APP, environ)
        keep = [(k, v) for k, v in headers if k.lower() in ("etag", "content-range", "content-type")]
        return int(status.split()[0]), b"".join(data), keep

    def serve(self):
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # whoever sent it was killed meanwhile
            self.close_connection = True
            return None
        with LOCK:
            SEEN.append(f"{self.command} {self.path}")
            faults = list(FAULTS)
        wrong = self.check(body)
        if wrong:
            WRONG.append(f"{wrong}: {self.command} {self.path}")
            return self.error(403, wrong)
        for fault in faults:
            if fault(self, body):
                return None
        return self.answer(*self.forward(body))

    do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = serve

    def cut(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
        return True


# ---- checks

def expect(true, what):
    if not true:
        raise AssertionError(what)


def check(test):
    global passed, failed
    FAULTS.clear(), SEEN.clear(), WRONG.clear()
    start = time.monotonic()
    try:
        test()
        passed += 1
        print(f"ok      {test.__name__}  {time.monotonic() - start:.1f} s", flush=True)
    except Exception as why:  # pylint: disable=broad-except
        failed += 1
        print(f"FAILED  {test.__name__}: {why}", flush=True)


def environment(**changes):
    env = os.environ | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": ENDPOINT,
                        "MALLOC_PERTURB_": sys.argv[5]} | changes
    return {k: v for k, v in env.items() if v}


def run(*words, code=0, env=None, program=HEDDLE):
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                          env=env or environment(), timeout=300 * PATIENCE)
    expect(SECRET not in done.stdout and TOKEN not in done.stdout, "a secret was printed")
    expect(done.returncode == code, f"exit code {done.returncode}, not {code}, of {' '.join(map(str, words))}:\n{done.stdout}")
    return done.stdout


def says(text, *words):
    for word in words:
        expect(word in text, f"'{word}' is not in:\n{text}")


JOB = """job: {name: %s, steps: 6}
model: {use: transformer, family: llama, layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}
data: {train: text, format: bytes, batch: 8, seq_len: 16}
optimizer: {use: adamw, lr: 1e-3}
launch: {ranks: 2}
strategies: [{use: zero, stage: 1}]
checkpoint: {dir: "%s", every: 2, keep: 0, async: false}
"""


def job(name, folder=None):
    with open(f"{name}.yaml", "w", encoding="ascii") as f:
        f.write(JOB % (name, folder or f"s3://bucket/{name}"))
    return f"{name}.yaml"


def keys(prefix=""):
    pages = S3.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
    return [o["Key"] for p in pages for o in p.get("Contents", [])]


def objects(prefix):
    """As they lie there, by key."""
    return {k: v.value for k, v in BACKEND.buckets["bucket"].keys.items() if k.startswith(prefix)}


def losses(name):
    with open(f"runs/{name}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return {r["step"]: r["loss"] for r in rows if "loss" in r}


def promises_of_every_store():
    print(run("ckpt-s3", "at=s3://bucket/conformance", "set:segment=64KiB", program=HEDDLE_TEST))
    expect(not WRONG, f"requests that botocore would not sign so: {WRONG[:3]}")


def with_a_session_token():
    print(run("ckpt-s3", "at=s3://bucket/session", "only=replaced", program=HEDDLE_TEST, env=environment(AWS_SESSION_TOKEN=TOKEN)))
    expect(not WRONG, f"requests that botocore would not sign so: {WRONG[:3]}")


def commands():
    """All that takes a checkpoint takes one of a bucket; the same state lies there as in a folder."""
    run("train", job("here", "here"))
    run("train", job("there"))
    expect(losses("here") == losses("there"), "other losses than with a folder")
    run("ckpt", "diff", "here/step-00000006", "s3://bucket/there/step-00000006")
    says(run("ckpt", "ls", "there.yaml"), "step-00000002", "step-00000004", "step-00000006")
    says(run("ckpt", "ls", "s3://bucket/there"), "step-00000006")
    says(run("ckpt", "show", "s3://bucket/there"), "step 6", "tensors")
    says(run("ckpt", "verify", "there.yaml", "--checkpoint", "step-00000002"), "every block matches")
    run("ckpt", "export", "there.yaml", "--to", "exported")
    run("eval", "there.yaml", "data.val=text")
    run("sample", "there.yaml", "--prompt", "the ", "--tokens", "4")
    says(run("ckpt", "rm", "s3://bucket/there", "--checkpoint", "step-00000002"), "is removed")
    run("ckpt", "prune", "there.yaml", "checkpoint.keep=1")
    says(run("ckpt", "ls", "there.yaml"), "step-00000006")
    left = keys("there/")
    expect(not [k for k in left if "step-00000004" in k or "step-00000002" in k or "pending" in k or ".table" in k], f"left: {left}")
    expect(not WRONG, f"{WRONG[:3]}")
    # botocore reads what was written
    commit = S3.get_object(Bucket="bucket", Key="there/commits/step-00000006", ChecksumMode="ENABLED")["Body"].read().decode()
    for segment in re.findall(r"^segment (\S+)$", commit, re.M):
        S3.get_object(Bucket="bucket", Key=f"there/segments/step-00000006/{segment}", ChecksumMode="ENABLED")["Body"].read()


def resumes_bit_for_bit():
    run("train", job("whole"))
    run("train", job("cut"), "job.steps=4")
    # killed in the middle of its next save: after step 6's first segment
    stopped = threading.Event()

    def kill(request, _):
        if request.command == "PUT" and "/segments/step-00000006/" in request.path:
            stopped.set()
            time.sleep(60)
        return None

    FAULTS.append(kill)
    with subprocess.Popen([HEDDLE, "train", "cut.yaml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
                          start_new_session=True) as p:
        expect(stopped.wait(120), "no save began")
        os.killpg(p.pid, signal.SIGKILL)
    FAULTS.clear()
    left = [k for k in keys("cut/") if "step-00000006" in k]
    expect(left and "cut/commits/step-00000006" not in left, f"of the save that was cut: {left}")
    expect("step-00000006" not in run("ckpt", "ls", "cut.yaml"), "what is not complete is listed")
    run("train", "cut.yaml")
    expect(losses("whole") == losses("cut"), f"{losses('whole')} and {losses('cut')}")
    run("ckpt", "diff", "s3://bucket/whole/step-00000006", "s3://bucket/cut/step-00000006")
    expect(not [k for k in keys("cut/") if "pending" in k], "a mark is left")
    # by its path, of another store too
    run("train", job("branch"), "checkpoint.resume=s3://bucket/whole/step-00000004")
    run("ckpt", "diff", "s3://bucket/whole/step-00000006", "s3://bucket/branch/step-00000006")
    # those of another run move aside
    run("train", "branch.yaml", "checkpoint.resume=overwrite", "job.seed=5")
    says(run("ckpt", "ls", "s3://bucket/branch.1"), "step-00000006")
    run("ckpt", "diff", "s3://bucket/whole/step-00000006", "s3://bucket/branch.1/step-00000006")
    expect(not WRONG, f"{WRONG[:3]}")


def refusals():
    run("train", job("refused"), "job.steps=2")
    ls = ("ckpt", "ls", "refused.yaml")
    for env, code, words in [
            ({"AWS_SECRET_ACCESS_KEY": "wrong"}, 2, ["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"]),
            ({"AWS_ACCESS_KEY_ID": "OTHER"}, 2, ["InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"]),
            ({"AWS_ACCESS_KEY_ID": ""}, 2, ["AWS_ACCESS_KEY_ID is not set", "export-credentials"]),
            ({"AWS_ENDPOINT_URL": ""}, 2, ["region is not known", "checkpoint.region"]),
            ({"AWS_ENDPOINT_URL": "ftp://x"}, 2, ["no http://HOST:PORT"])]:
        says(run(*ls, code=code, env=environment(**env)), *words)
    says(run("ckpt", "ls", "s3://no-such-bucket/x", code=2), "NoSuchBucket", "create it")
    says(run("train", job("nowhere", "s3://no-such-bucket/x"), code=2), "nowhere.yaml:7", "NoSuchBucket")
    says(run("ckpt", "ls", "s3://Bucket_/x", code=2), "no name of a bucket")
    says(run("train", job("gs", "gs://bucket/x"), code=2), "gs.yaml:7", "there is no plugin ckpt-gs")
    says(run("train", "refused.yaml", "checkpoint.use=posix", code=2), "is a URL")
    says(run("train", "refused.yaml", "checkpoint={use: s3, dir: folder}", code=2), "no s3://BUCKET/PREFIX")
    says(run("train", "refused.yaml", "checkpoint={dir: folder, resume: s3://bucket/refused/step-00000002}", code=2), "is a URL")
    FAULTS[:] = [lambda r, _: r.answer(200, b"<html><body>a portal</body></html>") or True]
    says(run(*ls, code=1), "no list of objects")
    for status, code, words in [(403, "RequestTimeTooSkewed", ["clock"]), (403, "AccessDenied", ["s3:ListBucket"]),
                                (301, "PermanentRedirect", ["eu-west-3", "checkpoint.region"]), (400, "ExpiredToken", ["expired"])]:
        SEEN.clear()
        FAULTS[:] = [lambda r, _, s=status, c=code: r.error(s, c, [("x-amz-bucket-region", "eu-west-3")]) or True]
        says(run(*ls, code=2), *words)
        expect(len(SEEN) == 1, f"{code} was tried {len(SEEN)} times")


def ranks_of_another_launcher():
    """They look whether they have one place before the first step, and leave nothing there."""
    for place, code, words in (("s3://bucket/other", 2, ["checkpoint.dir: rank 1: s3://bucket/other/pending/step-", "do all ranks have the same"]),
                               ("s3://bucket/together", 0, [])):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            at = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1])}
        together = job("together")  # once: a rank reads it while the next one starts
        ranks = [subprocess.Popen([HEDDLE, "train", together, f"checkpoint.dir={place if rank else 's3://bucket/together'}", "job.steps=2"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(RANK=str(rank), **at))
                 for rank in range(2)]
        for rank in ranks:
            out = rank.communicate(timeout=100 * PATIENCE)[0]
            expect(rank.returncode == code, f"exit code {rank.returncode}, not {code}:\n{out}")
        says(out, *words)
        expect(not [k for k in keys() if "pending" in k], keys())
    expect([k for k in keys("together/commits/")] == ["together/commits/step-00000002"], keys("together/"))


def what_passes_is_tried_again():
    """The first two tries of every request fail, each kind of failure in turn."""
    tries = {}

    def fail(request, body):
        with LOCK:
            n = tries[(request.command, request.path, body)] = tries.get((request.command, request.path, body), 0) + 1
        if n % 3 == 0:
            return None
        kind = (len(tries) + n) % 4
        if kind == 0:
            return request.error(503, "SlowDown") or True
        if kind == 1:
            return request.cut()
        if kind == 2:
            return request.error(429, "TooManyRequests") or True
        status, data, headers = request.forward(body)  # it is done, and the answer is lost half way
        request.send_response(status)
        for k, v in headers:
            request.send_header(k, v)
        request.send_header("Content-Length", str(len(data) + 10))
        request.end_headers()
        request.wfile.write(data)
        request.wfile.flush()
        return request.cut()

    FAULTS.append(fail)
    run("train", job("shaky"), "job.steps=2", "checkpoint.async=true")
    FAULTS.clear()
    says(run("ckpt", "verify", "shaky.yaml"), "every block matches")
    FAULTS.append(lambda r, _: r.error(503, "SlowDown") or True)
    start = time.monotonic()
    says(run("ckpt", "ls", "shaky.yaml", "checkpoint.retries=2", code=1), "503", "SlowDown")
    says(run("ckpt", "ls", "shaky.yaml", "checkpoint.timeout=2s", "checkpoint.retries=1000", code=1), "503")
    expect(time.monotonic() - start < 60, "the timeout is no bound")


def a_stop_is_no_timeout():
    """A job is stopped as a whole, for longer than checkpoint.timeout, while it saves."""
    running, left = [], [1]

    def stop(request, _):
        with LOCK:
            if not (running and left and "/segments/" in request.path):
                return None
            left.clear()
        os.killpg(running[0], signal.SIGSTOP)
        time.sleep(11)
        os.killpg(running[0], signal.SIGCONT)
        return request.cut()

    FAULTS.append(stop)
    with subprocess.Popen([HEDDLE, "train", job("stopped"), "checkpoint.timeout=10s"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment(), start_new_session=True) as p:
        running.append(p.pid)
        out = p.communicate()[0]
    expect(p.returncode == 0 and not left, f"exit code {p.returncode}:\n{out}")


def a_server_that_dies_at_each_request():
    """At request n of a save on, before it is done or after it: then the old or the new checkpoint is there, whole."""
    run("train", job("dying"), "job.steps=2")
    before = objects("dying/")
    run("ckpt", "verify", "dying.yaml")
    ends, n = {"old": 0, "new": 0}, 0
    while True:
        late, at, count = n % 2, n // 2 + 1, [0]

        def die(request, body):
            if request.command not in ("PUT", "DELETE"):
                return None if count[0] < at else request.cut()
            with LOCK:
                count[0] += 1
                mine = count[0]
            if mine < at:
                return None
            if mine == at and late:
                request.forward(body)
            return request.cut()

        FAULTS[:] = [die]
        done = subprocess.run([HEDDLE, "train", "dying.yaml", "job.steps=4", "checkpoint.every=0", "checkpoint.retries=0",
                               "checkpoint.timeout=5s"], capture_output=True, text=True, check=False, env=environment(), timeout=120 * PATIENCE)
        FAULTS.clear()
        there = run("ckpt", "ls", "dying.yaml")
        says(there, "step-00000002")
        now = objects("dying/")
        lost = [k for k in before if now.get(k) != before[k]]  # what is as it was when it was verified is whole
        expect(not lost, f"of step 2, changed or gone: {lost}")
        if "step-00000004" in there:
            ends["new"] += 1
            run("ckpt", "verify", "dying.yaml", "--checkpoint", "step-00000004")
            run("ckpt", "rm", "dying.yaml", "--checkpoint", "step-00000004")
        else:
            ends["old"] += 1
            expect(done.returncode != 0, "a save that failed was called a success")
        if count[0] < at:
            break
        n += 1
        expect(n < 100, "more requests than a save can have")
    expect(ends["old"] > 3 and ends["new"] > 1, f"{ends}")
    run("train", "dying.yaml", "job.steps=4", "checkpoint.every=0")
    run("ckpt", "rm", "dying.yaml", "--checkpoint", "step-00000004")
    expect(objects("dying/") == before, f"left: {set(keys('dying/')) ^ set(before)}")


def damage_is_found():
    run("train", job("damaged"), "job.steps=2")
    segments = sorted(k for k in keys("damaged/segments/"))
    whole = {k: S3.get_object(Bucket="bucket", Key=k)["Body"].read() for k in segments}
    largest = max(segments, key=lambda k: len(whole[k]))
    for what in (whole[largest][:-5000], whole[largest][:3000] + b"x" + whole[largest][3001:], None):
        if what is None:
            S3.delete_object(Bucket="bucket", Key=largest)
        else:
            S3.put_object(Bucket="bucket", Key=largest, Body=what)
        text = run("ckpt", "verify", "damaged.yaml", code=1)
        expect("damaged" in text or "checkpoint" in text, text)
    S3.put_object(Bucket="bucket", Key=largest, Body=whole[largest])
    run("ckpt", "verify", "damaged.yaml")
    commit = "damaged/commits/step-00000002"
    text = S3.get_object(Bucket="bucket", Key=commit)["Body"].read()
    S3.put_object(Bucket="bucket", Key=commit, Body=text[:len(text) // 2])
    expect("step-00000002  step" not in run("ckpt", "ls", "damaged.yaml"), "half a table is a checkpoint")


def requests_grow_as_the_ranks_do():
    """Ranks share blocks, so each reads back what others wrote: it gets one table, not that of each of them."""
    for ranks in (2, 4):
        SEEN.clear()
        run("train", job(f"ranks{ranks}"), "job.steps=2", f"launch.ranks={ranks}")
        gets = [s for s in SEEN if s.startswith("GET") and ".table" in s.split("?")[0]]
        expect(len(gets) <= 3 * ranks, f"{ranks} ranks got {len(gets)} tables: {gets}")
        expect(any("all.table" in g for g in gets), f"nothing was read back: {gets}")


def what_is_moved_aside_may_take_long():
    """Other ranks wait for longer than comm.timeout, and a move that was killed goes on where it was."""
    run("train", job("long"), "job.steps=2", "checkpoint.segment=4KiB")
    again = (HEDDLE, "train", "long.yaml", "job.steps=2", "checkpoint.resume=overwrite", "job.seed=5", "comm.timeout=5s")
    copies, enough, told = [], threading.Event(), threading.Event()

    def is_copy(request):
        return request.command == "PUT" and "/long.1/segments/" in request.path

    def kill(request, _):
        if not is_copy(request):
            return None
        with LOCK:
            copies.append(request.path)
            if len(copies) <= 20:
                return None
        enough.set()
        time.sleep(60)
        return True

    def hold(request, _):
        if is_copy(request):
            told.wait(100)

    FAULTS.append(kill)
    with subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True) as p:
        expect(enough.wait(120), "nothing was moved")
        os.killpg(p.pid, signal.SIGKILL)
    FAULTS[:] = [hold]
    there = keys("long.1/segments/")
    expect(there, "no segment was copied before")
    SEEN.clear()
    with subprocess.Popen(again, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()) as p:
        out = ""
        for line in p.stdout:
            out += line
            if "rank 0 still moves 1 checkpoint of s3://bucket/long aside" in line:
                told.set()
    expect(p.returncode == 0 and told.is_set(), f"exit code {p.returncode}:\n{out}")
    twice = [k for k in there if f"PUT /bucket/{k}" in SEEN]
    expect(not twice, f"copied twice: {twice}")
    says(run("ckpt", "verify", "s3://bucket/long.1"), "every block matches")
    expect(not [k for k in keys("long") if "pending" in k], "a mark is left")


def a_list_of_several_pages():
    run("train", job("many"), "job.steps=2")
    text = S3.get_object(Bucket="bucket", Key="many/commits/step-00000002")["Body"].read()
    for step in range(3, 2105):
        BACKEND.put_object("bucket", f"many/commits/x-{step:08d}", text)
    says(run("ckpt", "ls", "many.yaml"), "step-00000002")
    pages = [s for s in SEEN if "commits" in s and "list-type=2" in s]
    expect(len(pages) >= 3 and "continuation-token=" in pages[-1], f"{pages}")
    expect(not WRONG, f"{WRONG[:3]}")


with open("text", "w", encoding="ascii") as sample:
    sample.write("the warp and the weft are woven into one cloth, again and again.\n" * 40)
MODULES = list(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: MODULES  # it searches its folder, for each request
gc.freeze()
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
APP = DomainDispatcherApplication(create_backend_app)
MOTO = server.get_host_and_port()[1]
proxy = Quiet(("127.0.0.1", 0), Proxy)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
ENDPOINT = f"http://127.0.0.1:{proxy.server_address[1]}"
S3 = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{MOTO}", aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                  region_name="us-east-1")
logging.getLogger("werkzeug").setLevel(logging.ERROR)
S3.create_bucket(Bucket="bucket")
import moto.backends  # pylint: disable=wrong-import-order
BACKEND = moto.backends.get_backend("s3")["123456789012"]["aws"]
chosen = os.environ.get("S3_ONLY")
for each in (promises_of_every_store, with_a_session_token, commands, resumes_bit_for_bit, refusals, ranks_of_another_launcher,
             what_passes_is_tried_again, a_stop_is_no_timeout, a_server_that_dies_at_each_request, damage_is_found, requests_grow_as_the_ranks_do,
             what_is_moved_aside_may_take_long, a_list_of_several_pages):
    if not chosen or chosen in each.__name__:
        check(each)
print(f"{passed} passed, {failed} failed", flush=True)
shutil.rmtree(os.getcwd(), ignore_errors=True)
os._exit(failed > 0 or not passed)
