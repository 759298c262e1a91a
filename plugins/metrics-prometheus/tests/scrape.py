#!/usr/bin/env python3
"""A run scraped while it trains: every line against the grammar of the text format, histograms that add up, and promtool's own
word where it is installed.

    scrape.py HEDDLE FOLDER      FOLDER: of the tests' libnvidia-ml.so.1"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HEDDLE, DRIVER = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
PATIENCE = 20 * float(os.environ.get("CK_TIMEOUT_MULTIPLIER", "1"))
JOB = """
job: {name: scraped, steps: 1000000}
device: {use: cpu, threads: 1}
optimizer: {use: sgd, lr: 1e-3}
model: {use: transformer, family: llama, layers: 1, hidden: 16, heads: 2, kv_heads: 2, vocab: 256}
data: {train: corpus.txt, seq_len: 16, batch: 2}
metrics: {sinks: [jsonl, {use: prometheus, port: 0, textfile: node.prom}]}
"""
# https://prometheus.io/docs/instrumenting/exposition_formats/
NUMBER = r"(?:[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|Inf)|NaN)"
SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (' + NUMBER + ")")
COMMENT = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][\w:]*) (.+)")


def parse(text):
    """Samples by name and labels; fails where a line is none of the format's."""
    samples, types, told = {}, {}, set()
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        comment, sample = COMMENT.fullmatch(line), SAMPLE.fullmatch(line)
        assert comment or sample, f"not the text format: {line!r}"
        if comment:
            assert (comment[1], comment[2]) not in told, f"twice: {line}"
            told.add((comment[1], comment[2]))
            if comment[1] == "TYPE":
                types[comment[2]] = comment[3]
            continue
        family = re.sub("_(bucket|sum|count)$", "", sample[1])
        family = family if types.get(family) == "histogram" else sample[1]
        assert types.get(family) in ("counter", "gauge", "histogram"), f"a sample without its TYPE: {line}"
        assert ("HELP", family) in told, f"a sample without its HELP: {line}"
        assert (sample[1], sample[2]) not in samples, f"twice: {line}"
        samples[sample[1], sample[2]] = float(sample[3])
    return samples


def check_histogram(samples):
    buckets = [(float(labels[4:-1]), count) for (name, labels), count in samples.items() if name == "heddle_step_seconds_bucket"]
    assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1][1] == samples["heddle_step_seconds_count", None]


def check_promtool(text):
    if not shutil.which("promtool"):
        return
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and not done.stdout, done.stdout + done.stderr
    rules = subprocess.run(["promtool", "check", "rules", os.path.join(TOP, "examples/monitoring/alerts.yaml")], capture_output=True, text=True)
    assert rules.returncode == 0, rules.stdout + rules.stderr


def names_in_examples():
    """What the dashboard and the rules ask for is what the endpoint has."""
    source = "".join(open(os.path.join(TOP, "plugins/metrics-prometheus", name), encoding="utf-8").read() for name in ("text.c", "machine.c"))
    known = set(re.findall(r'"(heddle_\w+)"', source))
    known |= {"heddle_step_seconds" + end for end in ("_bucket", "_sum", "_count")}
    dashboard = json.load(open(os.path.join(TOP, "examples/monitoring/grafana.json"), encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += re.findall(r"expr: (.*)", open(os.path.join(TOP, "examples/monitoring/alerts.yaml"), encoding="utf-8").read())
    assert asked
    for expression in asked:
        wanted = set(re.findall(r"heddle_\w+", expression))
        assert wanted and wanted <= known, f"{expression}: no such metric: {wanted - known}"


def wait_for(what, get):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = get()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come within {PATIENCE:g} s")


def scrape(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        return answer.read().decode()


def refused(request, status):
    try:
        urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as why:
        assert why.code == status, why
        return
    raise AssertionError(f"{request} was answered")


def two_machines():
    """The first rank of the other machine has its machine, and nothing of the run."""
    if not re.search(r"^comm +libfabric +\S+ +yes", subprocess.run([HEDDLE, "plugins"], capture_output=True, text=True).stdout, re.M):
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    open("two.yaml", "w").write(JOB.replace("name: scraped", "name: two").replace(", textfile: node.prom", "") +
                                "comm: {use: libfabric, provider: tcp}\nmesh: {dp: 2}\n")
    ranks = []
    try:
        for rank in "01":
            env = {**os.environ, "RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": port, "HEDDLE_SECRET": "0123456789abcdef" * 4}
            ranks.append(subprocess.Popen([HEDDLE, "train", "two.yaml"], stdout=open("out" + rank, "w"), stderr=open("err" + rank, "w"), env=env))
        first, second = (wait_for("the endpoint of rank " + rank, lambda: re.search(r"http://127\.0\.0\.1:\d+/metrics", open("err" + rank).read()))[0]
                         for rank in "01")
        names = {name for name, _ in parse(scrape(second))}
        assert "heddle_machine_cpu_seconds_total" in names and all(name.startswith(("heddle_machine_", "heddle_gpu_")) for name in names), names
        assert names < wait_for("step 3", lambda: next(({n for n, _ in p} for p in [parse(scrape(first))] if p["heddle_step", None] >= 3), None))
    finally:
        for run in ranks:
            run.send_signal(signal.SIGTERM)
        codes = [run.wait(PATIENCE) for run in ranks]
    assert codes == [3, 3], (codes, open("err0").read(), open("err1").read())


def main():
    names_in_examples()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        open("job.yaml", "w").write(JOB)
        open("corpus.txt", "w").write("In the beginning was the word. " * 400)
        with open("out", "w") as out, open("err", "w") as errors:
            run = subprocess.Popen([HEDDLE, "train", "job.yaml"], stdout=out, stderr=errors, env={**os.environ, "LD_LIBRARY_PATH": DRIVER, "FAKE_NVML": "gpus=1"})
        try:
            address = wait_for("the endpoint", lambda: re.search(r"http://127\.0\.0\.1:\d+/metrics", open("err").read()))[0]
            text = wait_for("step 3", lambda: next((t for t in [scrape(address)] if parse(t)["heddle_step", None] >= 3), None))
            samples = parse(text)
            check_histogram(samples)
            check_promtool(text)
            assert 0 < samples["heddle_loss", None] < 10
            assert samples["heddle_tokens_total", None] == samples["heddle_step", None] * 32
            assert samples["heddle_tokens_per_second", None] > 0
            assert samples["heddle_alarms_total", 'rule="loss_spike"'] == 0
            assert samples["heddle_gpu_utilization_ratio", 'gpu="0"'] == 0.9
            assert samples["heddle_machine_cpu_seconds_total", 'mode="user"'] > 0
            assert samples["heddle_machine_memory_available_bytes", None] > 0
            assert samples["heddle_rank_compute_seconds", 'rank="0"'] > 0
            for _ in range(40):  # more than the connections that are open at once
                assert parse(scrape(address))["heddle_step", None] >= samples["heddle_step", None]
            assert parse(open("node.prom", encoding="utf-8").read())["heddle_step", None] >= 3
            refused(address.replace("/metrics", "/"), 404)
            refused(urllib.request.Request(address, data=b"x=1"), 405)
        finally:
            run.send_signal(signal.SIGTERM)
            code = run.wait(PATIENCE)
        assert code == 3, (code, open("err").read())
        rows = {row["step"]: row for row in map(json.loads, open("runs/scraped/metrics.jsonl")) if "loss" in row}
        final = parse(open("node.prom", encoding="utf-8").read())  # steps of some microseconds: the sink's queue may have left the last out
        assert abs(final["heddle_loss", None] / rows[final["heddle_step", None]]["loss"] - 1) < 1e-6
        two_machines()


main()
