#!/usr/bin/env python3
"""The search of `heddle plan` against all of its candidates, each planned alone; --fewest against every number of
ranks; mesh: auto.

search.py HEDDLE FOLDER-OF-EXAMPLES [--long]     # --long: two larger jobs in place of one
"""

import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from checks import check, end

HEDDLE, EXAMPLES = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
LONG = "--long" in sys.argv
JOB = """job: {name: search, steps: 4}
device: {use: cpu, threads: 1}
model: {use: transformer, family: gpt2, layers: 4, hidden: 64, heads: 4, vocab: 256, max_seq_len: 64}
data: {train: corpus.txt, seq_len: 64, batch: 32, micro_batch: 1}
optimizer: {use: adamw, lr: 1e-4}
"""
MACHINE = """name: small
device: cpu
memory: 100GB
bandwidth: 1e30
half: 0
peak_fp32: 1e12
kernel: 1e-6
levels: [{name: inside, ranks: 2, bandwidth: 1e10}, {bandwidth: 1e9}]
ranks: 2
"""


def heddle(command, *words):
    return subprocess.run([HEDDLE, command, *map(str, words)], capture_output=True, text=True, errors="replace")


def plans(job, *words):
    done = heddle("plan", job, *words, "--json")
    return json.loads(done.stdout) if not done.returncode else {"plans": [], "error": done.stderr}


def ways(n, least=1):
    return [w for w in range(least, n + 1) if n % w == 0]


def candidates(ranks, layers, batch, inside):
    """Every way, without any bound; `each` plans it with every recompute."""
    for tp, cp in itertools.product((1, 2, 4), (1, 2, 4)):
        if tp > inside or ranks % (tp * cp):
            continue
        for pp in ways(ranks // tp // cp):
            dp = ranks // tp // cp // pp
            shards = [(1, dp)] + ([(dp * tp * cp // inside, inside // tp // cp)] if 1 < inside // tp // cp < dp else [])
            for replicate, shard in shards:
                for stage in range(replicate > 1, 4 if shard * cp > 1 else 1):
                    for micro, chunks in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8) if pp > 1 else (1,)):
                        if (
                            pp > layers
                            or batch % (dp * micro)
                            or (chunks > 1 and (layers % (pp * chunks) or batch // dp // micro % pp))
                        ):
                            continue
                        dp_text = f"{{replicate: {replicate}, shard: {shard}}}" if replicate > 1 else shard
                        three = (
                            "{use: 3d"
                            + (", sequence_parallel: true" if tp > 1 else "")
                            + (f", schedule: interleaved, virtual: {chunks}" if chunks > 1 else "")
                            + "}, "
                        )
                        yield (
                            f"mesh={{pp: {pp}, dp: {dp_text}, cp: {cp}, ep: 1, tp: {tp}}}",
                            f"strategies=[{three if tp * pp * cp > 1 else ''}{{use: zero, stage: {stage}}}]",
                            f"data.micro_batch={micro}",
                        )


def each(way, *words):
    """The plans that there are of a candidate: one process for the three, each row as it is planned alone (plan.py)."""
    rows = plans("job.yaml", *words, *way, "--sweep", "recompute=none,selective,full")["plans"]
    return [row for row in rows if "step_s" in row]


def variants(way):
    """Another schedule, another prefetch."""
    for schedule in ("zb-h1", "zb-v") if "pp: 1," not in way[0] else ():
        yield [
            re.sub(r"{use: 3d(, sequence_parallel: true)?[^}]*}", rf"{{use: 3d\1, schedule: {schedule}}}", w)
            for w in way
        ]
    if "stage: 3" in way[1]:
        yield [re.sub(r"stage: 3[^}]*}", "stage: 3, prefetch: 4, prefetch_backward: 4}", w) for w in way]


def best_of_all():
    """With slow links pipelines are fastest, and with 32 micro-batches short programs bound their steps."""
    pathlib.Path("slow.yaml").write_text(MACHINE.replace("1e10", "1e6").replace("1e9", "1e6"))
    for machine, ranks, layers, batch in [("slow.yaml", 2, 4, 32)] + (
        [("m.yaml", 4, 4, 32), ("m.yaml", 4, 2, 16)] if LONG else [("m.yaml", 4, 4, 8)]
    ):
        words = f"model.layers={layers}", f"data.batch={batch}"
        found = plans("job.yaml", *words, "--search", "--machine", machine, "--ranks", ranks)
        all_of_them = []
        for way in candidates(ranks, layers, batch, 2):
            all_of_them += [row["step_s"] for row in each(way, *words, "--machine", machine)]
        best = [b["step_s"] for b in found["plans"]]
        varied = [b for b in found["plans"] if any(w in b["words"] for w in ("zb-", "prefetch", "every", "offload"))]
        all_of_them += [b["step_s"] for b in varied]
        check("a variant is among them", varied or batch == 32, found)
        for b in varied:
            pathlib.Path("varied.yaml").write_text(b["job"])
            check("a variant is what it says", plans("varied.yaml", "--machine", machine)["step_s"] == b["step_s"], b)
        row = plans("job.yaml", *words, *shlex.split(found["plans"][0]["words"]), "--machine", machine, "--ranks", ranks)
        check("words as a shell takes them", row.get("step_s") == best[0], row)
        for way in variants(shlex.split(found["plans"][0]["words"])):
            row = plans("job.yaml", *words, *way, "--machine", machine)
            check(f"no variant is faster: {way}", row.get("step_s", 1) > 0.994 * best[0], (row, best[0]))
        check(
            f"the ten fastest of {len(all_of_them)}",
            len(best) == 10 and all(abs(a - b) < 1e-12 for a, b in zip(best, sorted(all_of_them))),
            (best, sorted(all_of_them)[:10]),
        )
        check(
            "as many candidates", found["candidates"] >= len(all_of_them) > 60, (found["candidates"], len(all_of_them))
        )
        check("not all of them were tried", found["tried"] < found["candidates"], found["tried"])
        rules = {r["rule"]: r["cost"] for r in found["rules"]}
        alone = [b["step_s"] for b in found["plans"] if "pp: 1," in b["words"] and "tp: 1}" in b["words"]]
        check(
            "what dp alone costs",
            rules["below 1 G parameters by dp alone"] == (alone[0] / best[0] - 1 if alone else None),
            rules,
        )
        check(
            "only rules that say something",
            ("pipeline" in str(rules)) == ("pp: 1," not in found["plans"][0]["words"]) and "8k" not in str(rules),
            rules,
        )
        check("the bounds hold", all(b["bound_s"] <= b["step_s"] for b in found["plans"]), found)
        if batch == 32:
            near = [b["bound_s"] > 0.97 * b["step_s"] for b in found["plans"] if "pp: 2" in b["words"]]
            check("short programs bound long ones", sum(near) > 2, found)
        pathlib.Path("best.yaml").write_text(found["plans"][0]["job"])
        check("its job file gives the same plan", plans("best.yaml", "--machine", machine).get("step_s") == best[0])
        least = min(b["memory"] for b in found["plans"])
        pathlib.Path("tight.yaml").write_text(MACHINE.replace("100GB", str(least)))
        found = plans("job.yaml", *words, "--search", "--machine", "tight.yaml", "--ranks", 4)
        check(
            "what does not fit is left out", found["plans"] and all(b["memory"] <= least for b in found["plans"]), found
        )
    pathlib.Path("tight.yaml").write_text(MACHINE.replace("100GB", "1MB"))
    done = heddle("plan", "job.yaml", "--search", "--machine", "tight.yaml", "--ranks", 4)
    check("nothing fits", done.returncode == 2 and "none of" in done.stderr and "take more ranks" in done.stderr, done)


def any_mesh():
    """The job's own mesh need not fit the ranks."""
    search = "job.yaml", "model.layers=2", "data.batch=8", "--search", "--machine", "m.yaml", "--ranks", 4
    free = plans(*search)["plans"]
    own = plans(*search, "mesh={tp: 8, dp: 3}", "data.micro_batch=5")
    check(
        "a mesh of 24 ranks is searched on 4",
        free and [p["step_s"] for p in own["plans"]] == [p["step_s"] for p in free],
        own,
    )


def parts():
    """Ranks of different memory: what is chosen fits when it is planned alone, and nothing faster that fits is left out."""
    search = "job.yaml", "--search", "--machine", "slow.yaml", "--ranks", 2
    free = plans(*search)["plans"]
    peaks = sorted(p["memory"] for p in free)
    memory, swapped = (("--assume", f"memory={m}") for m in (f"{peaks[-1]}:{peaks[3]}", f"{peaks[3]}:{peaks[-1]}"))
    found = plans(*search, *memory)["plans"]

    def fits(row, words=memory):
        pathlib.Path("one.yaml").write_text(row["job"])
        return plans("one.yaml", "--machine", "slow.yaml", *words)["fits"]

    slowest = found[-1]["step_s"]
    left = [p for p in free if p["job"] not in [f["job"] for f in found]]
    check("each fits where the ranks' memory differs", len(found) == 10 and all(map(fits, found)), found)
    check("those left out do not", left and not any(fits(p) for p in left if p["step_s"] < slowest), left)
    check("a large stage is on the large part", not all(fits(p, swapped) for p in found), (peaks, found))


def saving():
    """Where hardly anything fits: states in the host's memory, inputs of fewer blocks."""
    deep = "model.layers=64", "model.max_seq_len=4096", "data.seq_len=4096", "data.batch=2"
    one = {
        w: plans("job.yaml", *deep, f"recompute={w}", "--machine", "m.yaml")["memory"]["peak"]
        for w in ("full", "{every: 2}")
    }
    check("segments keep less", one["{every: 2}"] < one["full"] - 200000, one)
    memory = (one["full"] + one["{every: 2}"]) // 2
    search = "job.yaml", *deep, "--search", "--ranks", 1, "--machine", "tight.yaml"
    pathlib.Path("tight.yaml").write_text(MACHINE.replace("100GB", str(memory)))
    found = plans(*search)["plans"]
    check("larger segments fit", found and all("every" in p["words"] and p["memory"] <= memory for p in found), found)
    pathlib.Path("tight.yaml").write_text(MACHINE.replace("100GB", str(memory)) + "host_link: 1e9\n")
    both = plans(*search)["plans"]
    check("offloaded states too", {"offload" in p["words"] for p in both} == {True, False}, both)
    for p in both:
        pathlib.Path("one.yaml").write_text(p["job"])
        alone = plans("one.yaml", "--machine", "tight.yaml")
        check("as planned alone", alone["fits"] and alone["step_s"] == p["step_s"], (alone, p))
        check(
            "copies take time",
            "offload" not in p["words"] or alone["step_s"] > alone["traffic"]["host"] / 2 / 1e9,
            alone,
        )


def fewest():
    for memory in ("100GB", "3MB", "2MB"):
        pathlib.Path("tight.yaml").write_text(MACHINE.replace("100GB", memory))
        found = plans("job.yaml", "--fewest", "--machine", "tight.yaml")["fewest"]
        ranks = range(1, found["ranks"] + 1)
        by_ranks = {n: plans("job.yaml", "--search", "--machine", "tight.yaml", "--ranks", n)["plans"] for n in ranks}
        fit = [n for n in ranks if by_ranks[n]]
        check(f"the fewest for {memory}", found["ranks"] == fit[0], (found["ranks"], fit))
        best = by_ranks[fit[0]][0]
        check(f"with the best plan of {memory}", all(found[k] == best[k] for k in ("job", "step_s", "memory")), found)
        check(
            f"what binds below {memory}",
            (
                ("fits on" in found["binds"] or "no way" in found["binds"])
                if fit[0] > 1
                else found["binds"] == "one rank is the least"
            ),
            found["binds"],
        )
    check("some need more than one", fit[0] > 1, fit)
    text = heddle("plan", "job.yaml", "--fewest", "--machine", "tight.yaml").stdout.splitlines()
    check(
        "a row",
        text[0].split()[0] == "ranks" and text[1].split()[0] == str(fit[0]) and "on one less: " in text[2],
        text[:3],
    )
    done = heddle("plan", "job.yaml", "--fewest", "--machine", "tight.yaml", "--ranks", fit[0] - 1)
    check("no more than --ranks", done.returncode == 2 and "none of" in done.stderr, done)


def long_context():
    words = ("data.seq_len=131072", "model.max_seq_len=131072", "data.batch=4", "--ranks", 4)
    roomy = plans("job.yaml", *words, "--search", "--machine", "m.yaml")["plans"]
    without = [
        p for way in candidates(4, 4, 4, 2) if "cp: 1," in way[0] for p in each(way, *words, "--machine", "m.yaml")
    ]
    least = min(p["memory"]["peak"] for p in without)
    pathlib.Path("tight.yaml").write_text(MACHINE.replace("100GB", str(least - 1)))
    found = plans("job.yaml", *words, "--search", "--machine", "tight.yaml")["plans"]
    check(
        "cp where nothing fits without",
        roomy and found and all("cp: 1," not in p["words"] for p in found),
        (least, found),
    )


def experts():
    words = (EXAMPLES / "moe.yaml", "--machine", "m.yaml", "--ranks", 4, "data.batch=16", "data.train=none")
    every = plans(*words, "--search")["plans"]
    pathlib.Path("tight.yaml").write_text(
        MACHINE.replace("100GB", "1TB").replace("1e10", "1e13").replace("1e9", "1e13")
    )
    ep = plans(*words[:1], "--machine", "tight.yaml", *words[3:], "--search")["plans"]
    alone = plans(
        *words,
        "mesh={dp: 2, ep: 2}",
        "strategies=[{use: 3d}, {use: zero, stage: 1}]",
        "data.micro_batch=4",
        "recompute=none",
    )
    check("ep is planned", "step_s" in alone, alone)
    check("and found", any("ep: 1," not in p["words"] for p in every + ep), [p["words"] for p in every + ep])
    check("none is slower than ep by hand", every[0]["step_s"] <= alone["step_s"], (every[0], alone))


def automatic():
    """mesh: auto is the best of --search, trains, and goes on with the same mesh whatever the search would say."""
    pathlib.Path("auto.yaml").write_text(
        JOB
        + "launch: {ranks: 2, machine: m.yaml}\nmesh: auto\nstrategies: auto\ncheckpoint: {every: 2}\n"
        + "metrics: {jsonl: run/m.jsonl}\n"
    )
    best = plans("job.yaml", "--search", "--machine", "m.yaml", "--ranks", 2)["plans"]
    done = heddle("train", "auto.yaml")
    check("two ranks train", done.returncode == 0 and "trained to step 4" in done.stdout, done)
    check(
        "a line says what was chosen, and what it beat",
        f"mesh: auto: {best[0]['words']}:" in done.stderr and best[1]["words"] in done.stderr,
        done.stderr,
    )
    first = json.loads(pathlib.Path("run/m.jsonl").read_text().splitlines()[0])
    wanted = best[0]["words"].split("'")[1][len("mesh=") :]
    check(
        "by the best plan",
        all(f"{axis}: {first['job']['mesh'][axis]}" in wanted for axis in ("pp", "dp", "cp", "tp")),
        (first["job"]["mesh"], wanted),
    )
    kept = pathlib.Path("run/mesh").read_text()
    done = heddle("sample", "auto.yaml", "--prompt", "in the", "--tokens", 4)
    check("and is sampled from", done.returncode == 0 and done.stdout.startswith("in the"), done)
    pathlib.Path("run/mesh").write_text(
        kept.replace(kept.splitlines()[1], "mesh={pp: 2, dp: 1, cp: 1, ep: 1, tp: 1}").replace(
            kept.splitlines()[2], "strategies=[{use: 3d}, {use: zero, stage: 0}]"
        )
    )
    done = heddle("train", "auto.yaml", "job.steps=6")
    check(
        "a run goes on as it began",
        done.returncode == 0
        and "pp 2" in done.stdout
        and "run/mesh: remove that file to choose anew" in done.stderr
        and "trained to step 6" in done.stdout,
        done,
    )
    done = heddle("check", "auto.yaml", "recompute=full", "data.micro_batch=1")
    check("what it replaces is said", "; the job's recompute=full gives way" in done.stderr, done)
    done = heddle("check", "auto.yaml", "data.batch=7", "data.pad_batch=never")
    check(
        "and whose micro-batch is refused",
        done.returncode == 2 and "data.batch: 7 is no multiple" in done.stderr and "run/mesh" in done.stderr,
        done,
    )
    done = heddle("train", "auto.yaml", "job.steps=2", "checkpoint.resume=overwrite")
    check(
        "a new one chooses anew",
        done.returncode == 0 and best[0]["words"] in done.stderr and pathlib.Path("run/mesh").read_text() == kept,
        done,
    )
    fixed = heddle("explain", "auto.yaml", "mesh={pp: 2, dp: 1}", "checkpoint.resume=never")
    check(
        "strategies: auto for a mesh",
        fixed.returncode == 0 and "strategies: auto: 'mesh={pp: 2, dp: 1," in fixed.stderr,
        fixed,
    )
    for command in "check", "explain", "plan":
        done = heddle(
            command, "auto.yaml", "checkpoint.resume=never", *(("--machine", "m.yaml") if command == "plan" else ())
        )
        check(f"{command} chooses too", done.returncode == 0 and best[0]["words"] in done.stderr, done)
    for words, says in [
        (["strategies=[{use: zero, stage: 1}]"], "strategies: mesh: auto chooses strategies too"),
        (["strategies=[{use: ema, decay: 0.9}]"], "strategies: mesh: auto chooses strategies too"),
        (["launch={machine: m.yaml}"], "auto.yaml:7:7: mesh: auto: for how many ranks? Set launch.ranks"),
        (["launch.machine=h100-8"], "machine h100-8 has device cuda"),
        (["launch.machine=nix"], "there is no machine 'nix'"),
        (["strategies.3d.context=ring"], "strategies"),
        (["launch.ranks=7"], "auto.yaml:7:7: "),
    ]:
        done = heddle("train", "auto.yaml", "checkpoint.resume=never", *words)
        check(f"refuses {words}", done.returncode == 2 and says in done.stderr, done)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("job.yaml").write_text(JOB)
        pathlib.Path("m.yaml").write_text(MACHINE)
        pathlib.Path("corpus.txt").write_text("in the beginning " * 400)
        best_of_all()
        any_mesh()
        parts()
        saving()
        fewest()
        long_context()
        experts()
        automatic()
        os.chdir("/")
    return end()


sys.exit(main())
