#!/usr/bin/env python3
"""`heddle plan` against closed forms: ZeRO's memory (Rajbhandari et al., arXiv 1910.02054, figure 1), traffic of rings, FLOPs
over a peak, bubbles of pipelines (Narayanan et al., arXiv 2104.04473, section 2.2), Daly's interval; and what it refuses.

    plan.py HEDDLE
"""
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from checks import check, end

HEDDLE = pathlib.Path(sys.argv[1]).resolve()
JOB = """job: {name: plan, steps: 10}
model: {use: transformer, family: gpt2, layers: 8, hidden: 256, heads: 4, vocab: 128, max_seq_len: 64}
data: {train: none, seq_len: 64, batch: 64, micro_batch: 1}
precision: {compute: bf16, grad: bf16}
optimizer: {use: adamw, lr: 1e-4}
"""
MACHINE = "name: ideal\ndevice: cpu\nmemory: 100GB\nbandwidth: 1e30\nhalf: 0\n"
FREE = "levels: [{name: all, bandwidth: 1e30}]\n"


def near(name, got, want, tolerance=1e-9):
    check(name, abs(got - want) <= tolerance * abs(want), f"{got} is not {want}")


def run(*words):
    return subprocess.run([HEDDLE, "plan", "job.yaml", *words], capture_output=True, text=True)


def plan(*words, machine="h100-8"):
    done = run(*words, "--json", "--machine", machine)
    if done.returncode:
        sys.exit(f"heddle plan {words}: {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def machine(text, name="m.yaml"):
    pathlib.Path(name).write_text(MACHINE + text)
    return name


def memory():
    for stage, states in enumerate(("16", "4 + 12 / n", "2 + 14 / n", "16 / n")):
        p = plan("mesh.dp=64", f"strategies=[{{use: zero, stage: {stage}}}]")
        m, n = p["memory"], 64
        explained = subprocess.run([HEDDLE, "explain", "job.yaml", "mesh.dp=64", f"device.use={p['device']}", f"strategies=[{{use: zero, stage: {stage}}}]",
                                    "--json"], capture_output=True, text=True)
        check(f"zero {stage}: the peak is the program's",
              m["peak"] == json.loads(explained.stdout)["totals"]["memory"]["arena_bytes"], m)
        check(f"zero {stage}: the kinds add up", sum(m.values()) - m["peak"] == m["peak"], m)
        # Shards are padded to whole elements a rank; gradients may be freed before the peak of activations.
        low, high = m["parameters"] + m["optimizer"], m["parameters"] + m["optimizer"] + m["gradients"]
        form = eval(states) * p["parameters"]
        check(f"zero {stage}: {states} bytes a parameter", low <= form * 1.001 and high >= form - 2 * p["parameters"] * (stage > 1) / n - 1,
              f"{low} {high} {form}")
    p = plan("mesh.dp=64", "strategies=[{use: zero, stage: 0}]")
    near("fp32 master, two moments, bf16 weights and gradients", sum(p["memory"][k] for k in ("parameters", "gradients", "optimizer")),
         16 * p["parameters"], 1e-3)


def times():
    ideal = machine("peak_fp32: 1e12\nkernel: 0\n" + FREE)
    p = plan("precision.compute=fp32", "precision.grad=fp32", "mesh.dp=1", "data.batch=4", machine=ideal)
    near("FLOPs over the peak", p["step_s"], p["flops_with_recompute"] / 1e12, 1e-6)
    near("HFU of an ideal machine", p["hfu"], 1, 1e-6)
    near("all of it is compute", p["compute_s"], p["step_s"])
    near("tokens a second", p["tokens_per_s"], 4 * 64 / p["step_s"])
    half = plan("precision.compute=fp32", "precision.grad=fp32", "mesh.dp=1", "data.batch=4", machine=machine("peak_fp32: 1e12\nproduct: 0.5\nattention: 0.5\n" + FREE))
    near("half of the peak takes twice as long", half["step_s"], 2 * p["step_s"], 1e-6)
    every = "".join(f"  - {{op: {op}, fp32: 3}}\n" for op in ("einsum", "attention", "attention_grad", "xent_head"))
    thrice = plan("precision.compute=fp32", "precision.grad=fp32", "mesh.dp=1", "data.batch=4",
                  machine=machine("peak_fp32: 1e12\nkernel: 0\n" + FREE + "instructions:\n" + every))
    near("ops that take three times as long", thrice["step_s"], 3 * p["step_s"], 1e-6)
    wide = plan("mesh.dp=1", "data.batch=4", machine=machine("peak_fp32: 1e12\nkernel: 0\n" + FREE))
    near("not those of the other width", plan("mesh.dp=1", "data.batch=4",
                                              machine=machine("peak_fp32: 1e12\nkernel: 0\n" + FREE + "instructions:\n" + every))["step_s"],
         wide["step_s"], 1e-6)
    for stages, micros in ((2, 8), (4, 8), (4, 2)):
        p = plan(f"mesh.pp={stages}", "mesh.dp=1", f"data.batch={micros}", "precision.compute=fp32", "precision.grad=fp32", "model.vocab=2", machine=ideal)
        near(f"1F1B, {stages} stages, {micros} micro-batches", p["bubble"], (stages - 1) / micros, 0.02)
        near("and compute is the rest", p["compute_s"] * (1 + p["bubble"]), p["step_s"], 1e-6)


def rings():
    # Nothing but the links costs time: a step is its transfers.
    links = "peak_fp32: 1e30\nkernel: 0\nlevels: [{name: inside, ranks: 8, bandwidth: 8e9}, {name: outside, bandwidth: 2e9}]\n"
    for ranks, rate in ((8, 8e9), (16, 8e9), (64, 8e9)):
        p = plan(f"mesh.dp={ranks}", "data.batch=64", "strategies=[{use: zero, stage: 1}]", machine=machine(links))
        near(f"a ring over {ranks} ranks, 8 a machine", sum(p["exposed_s"].values()), sum(p["traffic"].values()) / rate, 1e-6)
    p = plan("mesh.dp=8", "mesh.tp=4", "data.batch=64", machine=machine(links))
    near("two of a group in each machine share two links", p["exposed_s"]["dp_shard"], p["traffic"]["dp_shard"] / 4e9, 0.05)
    near("tp within a machine", p["exposed_s"]["tp"], p["traffic"]["tp"] / 8e9, 1e-6)
    p = plan("mesh.dp=64", "strategies=[{use: zero, stage: 1}]")
    n = 64
    near("zero 1 sends gradients in fp32 and weights in bf16", p["traffic"]["dp_shard"], (4 + 2) * p["parameters"] * (n - 1) / n, 1e-2)


def products():
    # All tiles of a product fit into one wave of so many units: twice as many leave twice as much of the peak idle.
    words = ("precision.compute=fp32", "precision.grad=fp32", "mesh.dp=1", "data.batch=4")
    base = "peak_fp32: 1e12\nkernel: 0\n"
    one, two, four = (plan(*words, machine=machine(f"{base}tile_m: 128\ntile_n: 128\nunits: {units}\n{FREE}"))["step_s"]
                      for units in (1e5, 2e5, 4e5))
    near("a wave that is never full", four - two, 2 * (two - one), 1e-6)
    a, b = (plan(*words, machine=machine(f"{base}attention: 0.5\n{more}{FREE}"))["step_s"] for more in ("", "attention_grad: 0.25\n"))
    attention = 4 * 8 * 2 * 2 * 256 * 64 * 64 / 2  # sequences, layers, two products of a causal half
    near("gradients of attention at their own share", b - a, 2.5 * attention / 1e12 * (1 / 0.25 - 1 / 0.5), 0.02)


def latencies():
    """Rings of gathers and reductions in parts, and the shorter of ring and tree for whole sums (the norm, the loss)."""
    hops = "peak_fp32: 1e30\nkernel: 0\ncollective: 5e-3\nlevels: [{ranks: 8, bandwidth: 1e30, latency: 1e-3}, {bandwidth: 1e30, latency: 0.1}]\n"
    for ranks, ring, tree in ((8, 7e-3, 7e-3), (64, 56e-3 + 0.7, 7e-3 + 0.3)):
        words = ("model.layers=1", "strategies=[{use: zero, stage: 3}]", "data.batch=64", f"mesh.dp={ranks}")
        p = plan(*words, machine=machine(hops))
        calls = [(o["op"] == "all_reduce", o["calls"]) for g in explained(*words, f"device.use={p['device']}")["groups"] for o in g["operations"]]
        near(f"hops over {ranks} ranks", sum(p["exposed_s"].values()), sum(n * (5e-3 + (2 * tree if whole else ring)) for whole, n in calls), 1e-6)


def interference():
    """A transfer that compute hides slows it by `slowed` of the time that it takes."""
    words = ("mesh.dp=8", "strategies=[{use: zero, stage: 0}]", "precision.compute=fp32", "precision.grad=fp32")
    links = "peak_fp32: 1e10\nkernel: 0\n{}levels: [{{bandwidth: 1e9}}]\n"
    free, slowed = (plan(*words, machine=machine(links.format(key))) for key in ("", "slowed: 0.5\n"))
    hidden = free["traffic"]["dp_shard"] / 1e9 - free["exposed_s"]["dp_shard"]
    check("most of it is hidden", hidden > 3 * free["exposed_s"]["dp_shard"], free)
    near("compute slowed by transfers", slowed["step_s"] - free["step_s"], 0.5 * hidden, 0.1)


def explained(*words):
    return json.loads(subprocess.run([HEDDLE, "explain", "job.yaml", *words, "--json"], capture_output=True, text=True).stdout)


def assumed():
    """What other systems do otherwise, each where it can be counted."""
    free = machine("peak_fp32: 1e12\nkernel: 0\n" + FREE, "free.yaml")
    words = ("precision.compute=fp32", "precision.grad=fp32", "mesh.dp=1", "data.batch=4", "recompute=full", "model.vocab=2")
    lean, whole = (plan(*words, "--assume", f"whole_recompute={w}", machine=free)["step_s"] for w in ("no", "yes"))
    layer = 4 * 64 * 2 * 12 * 256 * 256 + 4 * 2 * 2 * 256 * 64 * 65 / 2  # forward: products, and attention's causal half
    near("whole blocks run again", whole - lean, 8 * 4 * 64 * 2 * 4 * 256 * 256 / 1e12, 0.02)
    near("and then all of their forward pass", whole, 8 * (4 * layer + 0.5 * 4 * 2 * 2 * 256 * 64 * 65 / 2) / 1e12, 0.03)
    more = plan(*words[:4], "--assume", "recomputed_products=0.5", machine=free)["step_s"] - plan(*words[:4], machine=free)["step_s"]
    near("half of the products again", more, 0.5 * 8 * 4 * 64 * 2 * 12 * 256 * 256 / 1e12, 0.05)
    links = machine("peak_fp32: 1e12\nkernel: 0\nlevels: [{bandwidth: 1e9}]\n")
    for words in (("mesh.dp=8", "strategies=[{use: zero, stage: 1}]"), ("mesh.dp=2", "strategies=[{use: zero, stage: 0}]")):
        alone = plan(*words, machine=free)["step_s"]
        p = plan(*words, "--assume", "dp_overlap=no", machine=links)
        near(f"transfers after the last micro-batch, {words}", p["step_s"], alone + p["traffic"]["dp_shard"] / 1e9, 0.01)
    beside, blocking, pieces = (plan("mesh.tp=4", "mesh.dp=1", "--assume", a, machine=links) for a in ("dropout=no", "tp_overlap=no", "tp_pipelined=yes"))
    check("tp in pieces", pieces["exposed_s"]["tp"] < blocking["exposed_s"]["tp"] / 4, (pieces, blocking))
    check("tp that blocks is slower", blocking["step_s"] > beside["step_s"] > pieces["step_s"])
    near("all of tp is seen", blocking["exposed_s"]["tp"], blocking["traffic"]["tp"] / 1e9, 1e-6)
    memory = machine("peak_fp32: 1e30\nkernel: 0\nbandwidth: 1e12\n" + FREE)
    pathlib.Path(memory).write_text(pathlib.Path(memory).read_text().replace("bandwidth: 1e30\nhalf", "half"))
    words = ("mesh.dp=1", "data.batch=4", "recompute=none")
    plain, scores, drops, clips = (plan(*words, "--assume", a, machine=memory)["step_s"] for a in
                                   ("dropout=no", "fused_attention=no", "fused_attention=no,dropout=yes", "fused_optimizer=no"))
    size = 4 * 8 * 4 * 64 * 64 * 2  # sequences, layers, heads, positions squared, bytes
    near("dropout of scores and stream", drops - scores, (2 * 2.5 * size + 4 * 8 * 64 * 256 * 2 * 2 * 3) / 1e12, 0.15)
    check("scores in memory", scores - plain > 10 * size / 1e12, (scores, plain, size))
    near("passes of clipping", clips - plain, 24 * plan(*words, machine=memory)["parameters"] / 1e12, 1e-6)
    check("kernels of their own", plan(*words, "--assume", "fused_kernels=no", machine=memory)["step_s"] > plain)
    slow = ("mesh.dp=2", "data.micro_batch=1", "data.batch=12", "strategies=[{use: zero, stage: 1}]", "--assume", "speeds=1:0.5")
    alone = plan(*slow[:-2], machine=free)["step_s"]
    even, uneven, wrong = (plan(*slow, f"data.micro_batches={m}", machine=free) for m in ([6, 6], [8, 4], [4, 8]))
    near("a rank of half the speed", even["step_s"], 2 * alone, 0.01)
    near("fewer micro-batches for it, and the update at half the speed", uneven["step_s"], 8 / 6 * alone, 0.03)
    near("more of them", wrong["step_s"], 16 / 6 * alone, 0.01)
    check("FLOPs are those of all micro-batches", even["flops_with_recompute"] == uneven["flops_with_recompute"])
    check("the most even shares are said", even["micro_batches"] == [8, 4], even)
    waits = [p["exposed_s"]["dp_shard"] for p in (even, uneven, *(plan(*slow[:-1], f"speeds={s}", "data.micro_batches=[6, 6]", machine=free) for s in ("0.5:1", "0.5")))]
    near("the faster rank waits half of its time", waits[0], even["step_s"] / 4, 0.02)
    check("on whichever side", abs(waits[2] / waits[0] - 1) < 1e-6 and waits[3] < waits[0] / 50 and waits[1] < waits[0] / 10, waits)
    paid, spot = (plan("--tokens", "1B", machine=machine(f"peak_fp32: 1e12\nprice: 2\n{more}" + FREE))["training"]["dollars"] for more in ("", "spot_price: 0.5\nspot_share: 0.4\n"))
    near("a share of spot instances", spot, paid * (0.6 * 2 + 0.4 * 0.5) / 2)
    home = ("mesh.dp=1", "data.batch=4", "strategies=[{use: zero, stage: 0}]")
    away = (*home[:2], "strategies=[{use: zero, stage: 0, offload: {optimizer: host}}]")
    link = machine("peak_fp32: 1e12\nkernel: 0\nhost_link: 1e8\nhost_memory: 100MB\n" + FREE)
    alone, p = plan(*home, machine=link), plan(*away, machine=link)
    check("states are in the host's memory", p["memory"]["host"] == alone["memory"]["optimizer"] and p["memory"]["optimizer"] == 0 and p["fits"], (p, alone))
    near("and are copied there and back", p["traffic"]["host"], 2 * p["memory"]["host"])
    near("which takes its time", p["step_s"] - alone["step_s"], p["exposed_s"]["host"], 1e-3)
    check("by the link", 0.9 * p["traffic"]["host"] / 2 / 1e8 < p["exposed_s"]["host"] <= 1.01 * p["traffic"]["host"] / 1e8 and alone["exposed_s"] == {}, p)
    small = machine("peak_fp32: 1e12\nkernel: 0\nhost_link: 1e8\nhost_memory: 10MB\n" + FREE)
    check("too little of it", not plan(*away, machine=small)["fits"] and "host" in run(*away, "--machine", small).stdout.split("DOES NOT FIT")[0].splitlines()[-1])
    check("a cpu's memory is the host's", "host_link" not in run(*away, "--machine", machine("peak_fp32: 1e12\n" + FREE, "gpu.yaml")).stderr)
    pathlib.Path("gpu.yaml").write_text(pathlib.Path("gpu.yaml").read_text().replace("device: cpu", "device: cuda"))
    done = run(*away, "--machine", "gpu.yaml")
    check("a machine without one is said", done.returncode == 0 and "gpu.yaml has no host_link" in done.stderr, done.stderr)
    stages = ("mesh.pp=2", "mesh.dp=2", "data.batch=16", "--assume")
    alone, half, both, part = (plan(*stages, f"speeds={s}", machine=free) for s in ("1", "1:0.5", "0.5", "1:1:1:0.5"))
    check("a slow stage", 1.7 * alone["step_s"] < half["step_s"] < both["step_s"] and half["bubble"] > alone["bubble"] + 0.2, (alone, half, both))
    check("is as slow as its slowest rank", abs(part["step_s"] / half["step_s"] - 1) < 0.05 and alone["bubble"] < part["bubble"] - 0.3, (alone, half, part))
    balanced = plan(*stages, "speeds=1:0.5", "strategies.3d.split=[5,3]", machine=free)
    check("fewer layers for it", balanced["step_s"] < 0.9 * half["step_s"], (balanced["step_s"], half["step_s"]))
    parts = ("mesh.pp=2", "mesh.dp=1", "data.batch=16")
    whole = plan(*parts)
    tight, roomy, alike = (plan(*parts, "--assume", f"memory={m}") for m in ("64MB:2MB", "2MB:64MB", "64MB"))
    check("memory of a stage's ranks", [p["memory_limit"] for p in (tight, roomy, alike)] == [2e6, 2e6, 64e6] and not tight["fits"] and not roomy["fits"] and alike["fits"], (tight, roomy))
    check("is of the rank nearest its own limit", alike["memory"] == whole["memory"] and tight["memory"] != roomy["memory"], (alike, tight, roomy))
    p = plan("mesh.pp=4", "mesh.dp=1", "data.batch=8", "--assume", "stage_f=1,stage_b=2,stage_w=0.5")
    near("stages as measured", p["step_s"], (8 + 3) * 3.5)


def several():
    """Rows of --sweep and --compare are the plans of those jobs."""
    done = json.loads(run("--sweep", "data.micro_batch=1,4", "--machine", "h100-8", "--json").stdout)["plans"]
    for row, words in zip(done, ("data.micro_batch=1", "data.micro_batch=4")):
        check(f"a row of --sweep is the plan of {words}", {**plan(words), "words": words} == row, row)
    meshes = json.loads(run("--sweep", "mesh={pp: 2, dp: 2},{tp: 2}", "--json").stdout)["plans"]
    check("commas in braces are no new value", [row["ranks"] for row in meshes] == [4, 2], meshes)
    pathlib.Path("other.yaml").write_text(JOB.replace("layers: 8", "layers: 4"))
    rows = json.loads(run("--compare", "other.yaml", "--json").stdout)["plans"]
    check("--compare", [row["step_s"] for row in rows] == [plan()["step_s"], plan("model.layers=4")["step_s"]], rows)
    text = run("--sweep", "data.micro_batch=1,4", "--compare", "other.yaml").stdout.splitlines()
    check("and models", text[0].split()[1:3] == ["parameters", "tokens/step"] and text[3].split()[2:6] == ["3.21", "M", "4.1", "K"], text)
    check("their ranks, which may differ", text[0].split()[0] == "ranks" and {row.split()[1] for row in text[1:]} == {"1"}, text)
    text = run("--sweep", "mesh.dp=1,4").stdout.splitlines()
    check("so of meshes", text[0].split()[0] == "ranks" and [row.split()[1] for row in text[1:]] == ["1", "4"], text)
    text = run("--sweep", "data.micro_batch=1,4", "--compare", "other.yaml").stdout.splitlines()
    check("a row each", [row.split()[0] for row in text[1:]] == ["data.micro_batch=1", "data.micro_batch=4", "other.yaml"], text)
    done = run("--sweep", "data.micro_batch=1,3,4", "--json")
    one, none, other = json.loads(done.stdout)["plans"]
    check("a refused value is a row", done.returncode == 0 and "no multiple of micro_batch 3" in none["error"] and none["words"] == "data.micro_batch=3"
          and one == {**plan("data.micro_batch=1"), "words": one["words"]} and other == {**plan("data.micro_batch=4"), "words": other["words"]}, done)
    done = run("--sweep", "data.micro_batch=3,1")
    check("and says why", done.returncode == 0 and "no multiple of micro_batch 3" in done.stdout.splitlines()[0] and len(done.stdout.splitlines()) == 3, done)
    check("where it is compared", run("--compare", "no.yaml").stdout.splitlines()[1].split()[0] == "job.yaml")


def scaling():
    """Rows of --scaling are the plans of the job on so many ranks, with its batch, and with a batch that grows."""
    rows = json.loads(run("--scaling", "8,16,48", "--json").stdout)["scaling"]
    check("ranks and batches", [(r["kind"], r["ranks"], r["batch"]) for r in rows] ==
          [("strong", 8, 64), ("strong", 16, 64), ("strong", 48, 64), ("weak", 8, 64), ("weak", 16, 128), ("weak", 48, 384)], rows)
    padded = ("data.pad_batch=always",)
    for row, words in ((rows[0], ()), (rows[1], ()), (rows[2], padded), (rows[3], ()), (rows[4], ("data.batch=128",))):
        p = plan(f"launch.ranks={row['ranks']}", "mesh.dp=auto", *words)
        check(f"{row['kind']} on {row['ranks']} is that plan", [row[k] for k in ("step_s", "tokens_per_s", "mfu", "memory")] ==
              [p["step_s"], p["tokens_per_s"], p["mfu"], p["memory"]["peak"]] and row["fits"] == p["fits"], (row, p))
        near("exposed", row["exposed_s"], sum(p["exposed_s"].values()))
        near("empty places", row["empty"], 32 / 96 if words == padded else 0)
        near("efficiency", row["efficiency"], p["tokens_per_s"] / row["ranks"] / (rows[0]["tokens_per_s"] / 8))
    dp = "mesh.dp={replicate: 2, shard: 4}"
    row = json.loads(run(dp, "--scaling", "8", "--json").stdout)["scaling"][0]
    check("replicas stay", row["step_s"] == plan(dp)["step_s"], row)
    row = json.loads(run("data.micro_batch=2", "--scaling", "24", "--json").stdout)["scaling"][0]
    check("a micro-batch divides a rank's part", row["step_s"] == plan("mesh.dp=24", *padded)["step_s"] and row["empty"] == 8 / 72, row)
    text = run("data.micro_batch=4", "mesh.tp=2", "--scaling", "4,64").stdout.splitlines()
    check("a head and four rows", len(text) == 5 and text[1].split()[:3] == ["strong", "4", "64"], text)
    check("a micro-batch is no more than a rank's part", json.loads(run("data.micro_batch=4", "--scaling", "64", "--json").stdout)["scaling"][0]["step_s"]
          == plan("mesh.dp=64")["step_s"])


def advice():
    """Stages that idle longer than they work are said, with the remedy."""
    said = run("mesh.pp=4", "mesh.dp=1", "data.batch=2").stderr
    check("2 micro-batches on 4 stages", "2 micro-batches a step for 4 stages: with 1f1b they idle for 150 % of the time that they work, "
          "with 16 micro-batches for 19 %; a larger data.batch makes" in said, said)
    said = run("mesh.pp=4", "mesh.dp=1", "data.batch=8", "data.micro_batch=8").stderr
    check("1 of 8 sequences", "1 micro-batch a step for 4 stages" in said and "a smaller data.micro_batch with a larger data.batch makes" in said, said)
    said = run("mesh.pp=4", "mesh.dp=1", "data.batch=64", "data.micro_batch=32").stderr
    check("2 of 64 sequences", "19 %; a smaller data.micro_batch makes more" in said, said)
    said = run("mesh.pp=4", "mesh.dp=1", "data.batch=4").stderr
    check("as many as stages", "idle" not in said, said)


def training():
    p = plan("mesh.dp=64", "--tokens", "300B")
    t = p["training"]
    near("seconds of the training", t["seconds"], 300e9 / p["tokens_per_s"])
    near("rank-hours", t["rank_hours"], t["seconds"] / 3600 * 64)
    between, save = 8060 * 3600 / 64, (p["memory"]["parameters"] + p["memory"]["optimizer"]) / 1e9
    near("Daly's first order", t["checkpoint_every_s"], math.sqrt(2 * save * between) - save, 0.01)
    near("failures", t["failures"], t["seconds"] / between)
    check("--ranks", plan("--ranks", "16")["ranks"] == 16)
    for text, tokens in ("4.06B", 4060000000), ("2.01T", 2010000000000), ("9.999T", 9999000000000), ("1.001M", 1001000):
        check(f"--tokens {text}", plan("--tokens", text)["training"] == plan("--tokens", str(tokens))["training"])
    for text in "64.5", "1.0005K", "4.06X":
        check(f"--tokens {text}", "wanted a whole number" in run("--machine", "h100-8", "--tokens", text).stderr)
    text = run("--machine", "h100-8").stdout
    pathlib.Path("epochs.yaml").write_text(JOB.replace("steps: 10", "epochs: 2"))
    for words in ((), ("--json",)):
        done = subprocess.run([HEDDLE, "plan", "epochs.yaml", *words], capture_output=True, text=True)
        check("epochs without data", done.returncode == 0 and "epochs.yaml:1:" in done.stderr and "give --tokens N or job.steps" in done.stderr
              and ("training on" not in done.stdout if not words else json.loads(done.stdout)["training"] is None), done)
    done = subprocess.run([HEDDLE, "plan", "epochs.yaml", "--json", "--tokens", "1B"], capture_output=True, text=True)
    check("epochs with tokens", "epochs.yaml" not in done.stderr and json.loads(done.stdout)["training"] == plan("--tokens", "1B")["training"], done)
    said = run("mesh.dp=64", "--machine", machine("peak_fp32: 1e6\npeak_16: 1e6\nmtbf: 1h\n" + FREE), "--tokens", "1B").stdout
    check("failures closer than steps", "one every 56.2 s, so hardly a step would end: mtbf is of one rank, not of all 64" in said, said)
    rest = ("data.val_fraction=0.1", "checkpoint={every: 1, async: false}")
    said = run(*rest, "eval.every=2").stderr
    check("what is beside steps", "eval.every: the plan is of steps alone: evaluations take about 167 % of their time" in said
          and "checkpoint.every: the plan is of steps alone: saves that training waits for" in said, said)
    said = run(*rest[:1], "checkpoint={every: 1}", "eval.every=10", "eval.batches=1").stderr
    check("little beside steps is not", "of steps alone" not in said, said)
    check("the page", all(w in text for w in ("parameters", "activations", "MFU", "tokens/s", "memory is exact")), text)


def calibration():
    """What `heddle calibrate` prints is a machine file, of rates above 0, by which jobs are planned."""
    done = subprocess.run([HEDDLE, "calibrate", "--ranks", "2", "--steps", "1"], capture_output=True, text=True)
    pathlib.Path("here.yaml").write_text(done.stdout)
    check("calibrate", done.returncode == 0, done)
    keys = dict(line.split(": ", 1) for line in done.stdout.splitlines() if not line.startswith(("#", " ")) and ": " in line)
    check("rates", all(float(keys[key]) > 0 for key in ("memory", "bandwidth", "kernel", "peak_fp32", "attention")), keys)
    rows = [line for line in done.stdout.splitlines() if line.startswith("  - {op: ")]
    check("ops in jobs", sum("einsum, fp32: " in row and ", 16: " in row for row in rows) == 1 and any("adamw" in row for row in rows)
          and any("rmsnorm" in row for row in rows) and not any("all_reduce" in row for row in rows), done.stdout)
    if os.path.exists("/proc/thread-self/schedstat"):  # beside a program on the only core that both may use
        one = {min(os.sched_getaffinity(0))}
        pinned = {"start_new_session": True, "preexec_fn": lambda: os.sched_setaffinity(0, one)}
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"], **pinned)
        busy = subprocess.Popen([HEDDLE, "calibrate", "--ranks", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": "."}, **pinned)
        said = next((line for line in busy.stderr if "other programs ran meanwhile" in line), None)
        for one_of in (other, busy):
            os.killpg(one_of.pid, signal.SIGKILL)
            one_of.wait()
        check("that others ran is said", said)
    p = plan("mesh.dp=2", "precision.compute=fp32", "precision.grad=fp32", machine="here.yaml")
    check("threads of a rank", int(keys["threads"]) >= 1, keys)
    said = run("device.threads=77", "--machine", "here.yaml").stderr
    check("another number of them", f"command line: device.threads is 77, and here.yaml was measured with {keys['threads']}: planned times" in said, said)
    said = run("device.isa=avx2", "--machine", "here.yaml").stderr
    check("other instructions", "command line: device.isa is avx2, and here.yaml was measured with all that" in said, said)
    check("those that were measured", "was measured" not in run(f"device.threads={keys['threads']}", "--machine", "here.yaml").stderr)
    check("a plan of this machine", p["step_s"] > 0 and p["device"] == "cpu" and p["mfu"] <= 1, p)
    here = pathlib.Path("here.yaml").read_text()
    other = here.replace(f"threads: {keys['threads']}\n", "threads: 77\n").replace("processor: ", "processor: Pentium # ")
    pathlib.Path("other.yaml").write_text(other)
    pathlib.Path("text.txt").write_text("in the beginning " * 400)
    for file, said in ("here.yaml", 0), ("other.yaml", 1 + ("processor" in keys)):
        done = subprocess.run([HEDDLE, "train", "job.yaml", "--dry-run", "launch.ranks=2", "data.train=text.txt", "model.vocab=256", "--machine", file],
                              capture_output=True, text=True)
        check(f"the machine of {file}", done.returncode == 0 and done.stderr.count("planned times are of the former") == said, done)
    done = run("--ranks", "4", "--machine", "here.yaml")
    check("no further than was measured", done.returncode == 2 and "4 ranks: here.yaml has no level beyond 2 of shm" in done.stderr, done)
    for words, says in [(["--ranks", "0"], "--ranks 0"), (["--ranks", "x"], "--ranks x"), (["--ranks"], "--ranks needs a value"), (["--steps", "0"], "--steps 0"), (["x"], "no option x"), (["--rank", "2"], "no option --rank"),
                        (["--device", "nix"], "no plugin device-nix"), (["--comm", "nix"], "no plugin comm-nix")]:
        done = subprocess.run([HEDDLE, "calibrate", *words], capture_output=True, text=True)
        check(f"calibrate refuses {words}", done.returncode == 2 and says in done.stderr and not done.stdout, done)


def beside_training():
    """`heddle train --machine` says at the start what a step should take, after 20 of them what it took, and both by kind of instruction:
    on a machine that takes 0.1 seconds for each."""
    pathlib.Path("corpus.txt").write_text("in the beginning " * 400)
    words = ["data.train=corpus.txt", "data.batch=4", "data.micro_batch=2", "model.layers=1", "model.hidden=32", "model.vocab=256",
             "device={use: cpu, threads: 1}", "precision={}", "job.steps=20", "metrics.jsonl=m.jsonl", "metrics.profile=true"]
    slow = machine("kernel: 0.1\npeak_fp32: 1e30\n" + FREE)
    for ranks, more in (1, []), (2, ["mesh.dp=2"]):
        done = subprocess.run([HEDDLE, "train", "job.yaml", "--machine", slow, *words, *more], capture_output=True, text=True)
        start = json.loads(pathlib.Path("m.jsonl").read_text().splitlines()[0])["plan"]
        planned = plan(*words, *more, machine=slow)["step_s"]
        check(f"{ranks} ranks train", done.returncode == 0, done.stderr)
        near("the plan in the metrics", start["step_s"], planned)
        check("its machine", start["machine"] == "ideal", start)
        check("at the start", f"planned by ideal: {1e3 * planned:.4g} ms a step\n" in done.stdout, done.stdout)
        said = [line for line in done.stderr.splitlines() if "a step takes " in line]
        check("after 20 steps", len(said) == 1 and f"(median of the last 10), planned by ideal: {1e3 * planned:.4g} ms, +" in said[0], said)
        table = [line.split() for line in done.stdout.split("instruction\n")[1].split("\n\n")[0].splitlines() if line.startswith(" ")]
        own = [cells for cells in table if "wait" not in cells and float(cells[3]) > 0]  # share, ms, planned, calls, rates, roofline, phase, op
        check("the roofline", "ms a step, by rates of ideal\n" in done.stdout, done.stdout)
        check("by kind", len(own) > 20 and (ranks > 1 or all(math.isclose(float(cells[2]), 1e2 * float(cells[3])) for cells in own)), table)
    for words_, says in [(["--machine", "h100-8"], "--machine h100-8: its device is cuda, and the job's device.use is cpu"),
                         (["--machine", "nix"], "there is no machine 'nix'"), (["--machine", "no.yaml"], "no.yaml"), (["--machine"], "needs a value")]:
        done = subprocess.run([HEDDLE, "train", "job.yaml", *words, *words_], capture_output=True, text=True)
        check(f"train refuses {words_}", done.returncode == 2 and says in done.stderr, done)
    done = subprocess.run([HEDDLE, "train", "job.yaml", *words, "job.name=none", "metrics.jsonl=none.jsonl"], capture_output=True, text=True)
    check("nothing is said unasked", done.returncode == 0 and "planned" not in done.stdout + done.stderr, done)


def refusals():
    rows = [
        (["--machine", "nix"], "there is no machine 'nix': a100-80-8, b200-8, cpu, h100-8, h200-8"),
        (["--machine", "no.yaml"], "no.yaml"),
        (["--ranks", "0"], "--ranks 0"),
        (["--ranks", "2.5"], "--ranks 2.5"),
        (["--ranks", "x"], "--ranks x"),
        (["--tokens", "-3"], "--tokens -3"),
        (["--tokens", "3Q"], "--tokens 3Q"),
        (["--assume", "dropuot=yes"], "'dropuot=yes': unknown key: write KEY=VALUE with fused_attention"),
        (["--assume", "dropout"], "'dropout': no value"),
        (["--assume", ""], "--assume is given an empty value"),
        (["--assume", "dropout=yes,"], "unknown key"),
        (["--assume", "dropout=maybe"], "dropout: "),
        (["--assume", "states=1"], "states: "),
        (["--assume", "recomputed_products=2"], "recomputed_products: "),
        (["--assume", "stage_b=1"], "beside stage_f, which is missing"),
        (["--assume", "stage_f=0.02"], "beside stage_b, which is missing"),
        (["--assume", "stage_f=-1"], "stage_f: "),
        (["--assume", "speeds=1:0"], "speeds: '0': "),
        (["--assume", "speeds=50:100"], "speeds: '50': "),
        (["--assume", "speeds=1:"], "speeds: '': "),
        (["--assume", "speeds=1:1:1", "mesh.dp=2"], "speeds: 3 numbers for 2 ranks"),
        (["--assume", "memory=80GB:x"], "memory: 'x': "),
        (["--assume", "memory=80"], "memory: '80': "),
        (["--assume", "memory=1GB:1GB:1GB", "mesh.dp=2"], "memory: 3 numbers for 2 ranks"),
        (["--search", "--ranks", "2", "--assume", "memory=1GB:1GB:1GB"], "memory: 3 numbers for 2 ranks"),
        (["--fewest", "--assume", "memory=1GB:2GB"], "memory of parts is of a single plan"),
        (["--search", "mesh.dp=2", "data.batch=8", "data.micro_batches=[5, 3]"], "a search chooses among meshes"),
        (["--search", "--assume", "speeds=1:2"], "--assume: speeds are of a single plan"),
        (["--assume", "states=18", "model.ffn=512"], "the closed forms are of a GPT's blocks"),
        (["--assume", "tp_overlap=no,tp_pipelined=yes"], "tp_pipelined"),
        (["--machine", machine(FREE)], "peak_fp32"),
        (["mesh.dp=3", "data.batch=4"], "data.batch"),
        (["mesh.tp=3"], "mesh.tp"),
        (["--search", "--assume", "stage_f=1,stage_b=1"], "not with --search"),
        (["--sweep", "data.micro_batch=1,2", "--search"], "--search chooses by itself"),
        (["--compare", "job.yaml", "--search"], "--search chooses by itself"),
        (["--sweep", "data.micro_batch=1,2", "--tokens", "1B"], "--tokens is of a single plan"),
        (["--sweep", "data.micro_batch"], "wanted KEY=VALUE"),
        (["--sweep", "=1"], "wanted KEY=VALUE"),
        (["--sweep", "data.micro_batch="], "has no value"),
        (["--sweep", "data.micro_batch=3,5"], "no multiple of micro_batch 5"),
        (["--sweep", "data.microbatch=1"], "unknown key microbatch"),
        (["--compare", "no.yaml"], "no.yaml"),
        (["--scaling", "8,16", "--ranks", "4"], "--scaling names the ranks of one job"),
        (["--scaling", "8", "--search"], "--scaling names the ranks of one job"),
        (["--scaling", "8", "--tokens", "1B"], "--tokens is of a single plan"),
        (["--scaling", "3,4", "data.batch=4"], "a batch of 4 on 3 ranks is no whole number on 4: take a data.batch that 3 divides"),
        (["--scaling", "8,,16"], "--scaling 8,,16: wanted numbers of ranks"),
        (["--scaling", "8,16,"], "wanted numbers of ranks"),
        (["--scaling", "0x8"], "wanted numbers of ranks"),
        (["--scaling", "8,65537"], "1 to 65536"),
        (["--scaling", "8,48", "data.pad_batch=never"], "in the strong row of 48 ranks, whose batch is 64"),
        (["--scaling", "3", "mesh.tp=2"], "3"),
        (["--search", "--tokens", "1B"], "not with --search"),
        (["--search", "strategies=[{use: ema, decay: 0.9}]"], "strategies.ema.use: --search sets"),
        (["--fewest", "--search"], "--fewest searches by itself"),
        (["--fewest", "--sweep", "data.micro_batch=1,2"], "--fewest chooses by itself"),
        (["--fewest", "strategies=[{use: ema, decay: 0.9}]"], "strategies.ema.use: --fewest sets"),
        (["--scaling", "8", "--fewest"], "--scaling names the ranks of one job"),
        (["--search", "strategies=[{use: fsdp, offload: {optimizer: host}}]"], "strategies.fsdp.offload.optimizer: --search sets"),
        (["--search", "strategies=[{use: zero, bukket: 1}]"], "unknown key bukket"),
        (["--search", "strategies.3d.context=ring"], "strategies.3d.context=ring: --search sets"),
    ]
    for words, says in rows:
        done = run(*words)
        check(f"refuses {words}", done.returncode == 2 and says in done.stderr, done)
    done = run("--search", "--ranks", "2", "data.batch=2", "model.layers=1", "strategies=[{use: fsdp, sharding_strategy: 1}]")
    check("a stage is searched", done.returncode == 0, done)
    ends = machine("peak_fp32: 1e12\nlevels: [{name: inside, ranks: 8, bandwidth: 1e9}]\n", "ends.yaml")
    for words in (), ("--search",), ("--scaling", "8,16"):
        done = run("--machine", ends, *words, *(("--ranks", "16") if words != ("--scaling", "8,16") else ()))
        check(f"refuses ranks beyond the last level {words}", done.returncode == 2 and "16 ranks: ends.yaml has no level beyond 8 of inside: add one" in done.stderr, done)
    check("so many ranks are planned", plan("--ranks", "8", machine=ends)["ranks"] == 8)
    for text, says in [("levels: []\n", "levels is a list"), ("levels: [{bandwidth: 0}]\n", "bandwidth"), ("flop: 3\n", "unknown key flop"),
                       ("product: 1.5\n" + FREE, "product"), ("levels: [{ranks: 8, bandwidth: 1}, {ranks: 12, bandwidth: 1}, {bandwidth: 1}]\n".replace("bandwidth: 1", "bandwidth: 1e9"), "multiple"),
                       ("peak_fp32: 1e12\nlevels: [{ranks: 8, bandwidth: 1e9}, {ranks: 12, bandwidth: 1e9}]\n", "multiple"),
                       ("levels: [{bandwidth: 450}]\n", "bandwidth: 450 is too small: at least 1000000 (bytes a second)"),
                       ("levels: [{bandwidth: 450e9, latency: 1.9}]\n", "latency: 1.9 is out of range: 0 to 0.1 (seconds)"),
                       ("kernel: 3\n" + FREE, "kernel: 3 is out of range: 0 to 0.1 (seconds)"), ("collective: 10\n" + FREE, "collective: 10 is out of range: 0 to 0.1 (seconds)"), ("peak_16: 989.4\n" + FREE, "(FLOPs a second of bf16 and fp16)"),
                       ("spot_share: 0.5\n" + FREE, "spot_share, spot_price and price are wanted together"),
                       ("price: 2\nspot_price: 50\nspot_share: 0.5\n" + FREE, "spot_price is above price"), ("power: 0.7\n" + FREE, "power: 0.7 is too small: at least 1 (watts a rank)"),
                       ("mtbf: 8060\n" + FREE, "m.yaml:6:7: mtbf: 8060 has no unit: write 8060h"), ("mtbf: 8s\n" + FREE, "(seconds between failures of a rank)"),
                       (FREE + "instructions: {op: einsum}\n", "instructions is a list of {op, fp32, 16}"),
                       (FREE + "instructions: [einsum]\n", "an instruction is {op, fp32, 16}"),
                       (FREE + "instructions: [{op: einsun, fp32: 2}]\n", "m.yaml:7:16: there is no op einsun"),
                       (FREE + "instructions: [{op: einsum, 16: 2}, {op: einsum, fp32: 2}]\n", "m.yaml:7:37: einsum is there twice"),
                       (FREE + "instructions: [{op: einsum, fp32: 0}]\n", "fp32: 0 is out of range: 0.01 to 1000 (times as long, of fp32)"),
                       ("levels: 3\n", "levels is a list"), ("peak_fp32: [1]\n" + FREE, "one value"), ("name\n", "m.yaml:"), ("memory: -1\n" + FREE, "memory")]:
        done = run("--machine", machine(text))
        check(f"refuses {text.strip()}", done.returncode == 2 and says in done.stderr, done)
    for more, said in ("", 1), ("peak_16: 2e12\n", 0):
        done = run("--machine", machine("peak_fp32: 1e12\n" + more + FREE), "mesh.dp=1")
        check(f"a peak of fp32 for bf16 is said {more}", done.returncode == 0 and done.stderr.count("m.yaml has no peak_16, and the job computes in bf16") == said, done)
    for more, said in ("", 1), ("half: 8\n", 0), ("product: 0.9\n", 0), ("units: 132\n", 0):
        pathlib.Path("m.yaml").write_text(MACHINE.replace("half: 0\n", "peak_fp32: 1e12\npeak_16: 1e12\n" + more) + FREE)
        done = run("--machine", "m.yaml")
        check(f"an ideal machine is said {more}", done.returncode == 0 and done.stderr.count("m.yaml has neither product, half nor units") == said, done)
    for key, text, says in [("memory: 100GB", "memory: 80", "memory: 80 is out of range: 1000000 to 1e+18 (bytes, as 80GB)"),
                            ("bandwidth: 1e30", "bandwidth: 3350", "bandwidth: 3350 is too small: at least 100000000 (bytes a second)")]:
        pathlib.Path("m.yaml").write_text((MACHINE + FREE).replace(key, text, 1))
        done = run("--machine", "m.yaml")
        check(f"refuses {text}", done.returncode == 2 and says in done.stderr, done)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("job.yaml").write_text(JOB)
        memory()
        times()
        rings()
        products()
        latencies()
        interference()
        assumed()
        several()
        scaling()
        advice()
        training()
        calibration()
        beside_training()
        refusals()
        os.chdir("/")
    return end()


sys.exit(main())
