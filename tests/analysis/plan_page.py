#!/usr/bin/env python3
"""`heddle plan --html`: its figures are those of --json, its bars as long as they are; pages are well-formed, need
nothing beside them and escape what they quote; and what it refuses.

plan_page.py HEDDLE
"""
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from checks import check, end

HEDDLE = pathlib.Path(sys.argv[1]).resolve()
JOB = """job: {name: page, steps: 10}
device: {use: cpu, threads: 1}
model: {use: transformer, family: gpt2, layers: 8, hidden: 64, heads: 4, vocab: 128, max_seq_len: 64}
data: {train: none, seq_len: 64, batch: 64, micro_batch: 1}
optimizer: {use: adamw, lr: 1e-4}
"""
MACHINE = """name: small
device: cpu
memory: 100MB
bandwidth: 1e11
half: 0
peak_fp32: 1e12
price: 2.5
power: 400
mtbf: 1000h
levels: [{name: inside, ranks: 2, bandwidth: 1e10}, {bandwidth: 1e9}] # <b> & "c"
ranks: 2
"""


def run(*words, job="job.yaml", machine="m.yaml"):
    return subprocess.run([HEDDLE, "plan", job, "--machine", machine, *words], capture_output=True, text=True)


class Page(html.parser.HTMLParser):
    """Tables by the heading above them: rows of cells, a number where a cell has one, else its text."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.faults, self.head, self.tables, self.words = text, [], [], "", {}, {}
        self.number = None
        self.feed(text)
        self.close()
        self.faults += self.open[1:]  # html, whose end is written too
        self.svgs = [xml.etree.ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        if tag in ("h1", "h2"):
            self.head = ""
        if tag == "table":
            self.tables.setdefault(self.head, []).append([])
        if tag == "tr":
            self.tables[self.head][-1].append([])
        if tag in ("td", "th"):
            self.cell = ""
        if tag == "data":
            self.number = float(dict(attributes)["value"])
        if tag in ("script", "link", "img", "iframe", "object", "embed", "b", "c"):
            self.faults.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append("/" + tag)
        if tag in ("td", "th"):
            self.tables[self.head][-1][-1].append(self.cell if self.number is None else self.number)
            self.number = None

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        self.words.setdefault(inside, []).append(data)
        if inside in ("h1", "h2"):
            self.head += data
        if "td" in self.open or "th" in self.open:
            self.cell += data

    def rows(self, head, table=0):
        """Each row as {column: value}; columns of a bar have no name."""
        names, *rows = self.tables[head][table]
        return [dict(zip(names, [cell for cell in row if cell != ""])) for row in rows]

    def word(self, tag):
        return "".join(self.words.get(tag, []))


def page(*words, job="job.yaml", machine="m.yaml", name="p.html"):
    """The page, and what --json prints in the same run; without --json the text is what it is without a page."""
    done = run(*words, "--html", name, "--json", job=job, machine=machine)
    check(f"a page of {words}", done.returncode == 0, done)
    text = pathlib.Path(name).read_text()
    p = Page(text)
    check(f"well-formed, {words}", not p.faults and text.startswith("<!-- heddle -->\n<!doctype html>"), p.faults)
    check(f"nothing from elsewhere, {words}", not re.search(r"https?:(?!//www.w3)|src=|href=|url\(|@import", re.sub(
        r"<pre>.*?</pre>", "", text, flags=re.S)), re.findall(r".*(?:https?:|src=|href=|url\(|@import).*", text))
    check(f"no number is lost, {words}", not re.search(r'[" ,](nan|-?inf)[" ,]', text), words)
    check(f"light and dark, {words}", "prefers-color-scheme:dark" in text and "color-scheme:light dark" in text)
    alone = run(*words, "--json", job=job, machine=machine)
    check(f"the same --json, {words}", alone.stdout == done.stdout, done)
    check(f"the same text, {words}", run(*words, job=job, machine=machine).stdout ==
          run(*words, "--html", name, job=job, machine=machine).stdout)
    return p, json.loads(done.stdout)


def widths(svg):
    return [float(r.get("width")) for r in svg.iter("rect")]


def bar_is_to_scale(name, svg, values, whole):
    """Its pieces lie side by side, as long as the values; `whole` is where the line stands."""
    boxes = [(float(r.get("x")), float(r.get("width"))) for r in svg.iter("rect")]
    scale = 1024 / max(sum(values), whole)
    good = len(boxes) == len(values)
    for k, (x, width) in enumerate(boxes):
        good &= abs(width - values[k] * scale) < 0.02 and abs(x - 16 - sum(values[:k]) * scale) < 0.05
    line = next(svg.iter("polyline")).get("points").split(",")[0]
    check(f"{name} to scale", good and abs(float(line) - 16 - whole * scale) < 0.1, (boxes, values, line))


def single():
    words = ("mesh={pp: 2, dp: 2, tp: 2}", "strategies=[{use: 3d}, {use: zero, stage: 1}]", "--tokens", "1B")
    p, plan = page(*words)
    memory, training = plan["memory"], plan["training"]
    check("the heading", p.word("h1") == "page on 8 ranks of small", p.word("h1"))
    check("the command", f"heddle plan job.yaml --machine m.yaml {' '.join(words)} --html p.html --json" in p.text)
    check("facts", p.rows("page on 8 ranks of small") == [{
        "parameters": plan["parameters"], "ranks": 8, "step": plan["step_s"], "tokens/s": plan["tokens_per_s"],
        "MFU": plan["mfu"], "HFU": plan["hfu"], "bubble": plan["bubble"], "memory": memory["peak"]}], p.tables)
    kinds = ("parameters", "gradients", "optimizer", "activations", "buffers")
    parts = [(kind, memory[kind]) for kind in kinds] + [("headroom", plan["memory_limit"] - memory["peak"])]
    rows = p.rows("Memory of the fullest rank")
    check("memory by kind", [(row[""].strip(), row["memory"]) for row in rows] == parts, rows)
    check("shares", all(abs(row["of the machine's"] - row["memory"] / 1e8) < 1e-12 for row in rows), rows)
    bars = [svg for svg in p.svgs if svg.get("role") == "img"]
    bar_is_to_scale("memory", bars[0], [value for _, value in parts], plan["memory_limit"])
    exposed = [(f"exposed: {axis}", s) for axis, s in plan["exposed_s"].items() if axis != "pp"]
    parts = [("compute", plan["compute_s"]), *exposed]
    parts.append(("bubble", plan["step_s"] - sum(s for _, s in parts)))
    rows = [tuple(row.values())[:2] for row in p.rows("Time of a step")]
    check("where the time goes", len(parts) == 4 and [name.strip() for name, _ in rows] == [name for name, _ in parts]
          and all(abs(a - b) < 1e-12 for (_, a), (_, b) in zip(rows, parts)), (rows, parts))
    check("compute, by FLOPs and kernels, and a bubble", 0 < plan["compute_s"] < plan["step_s"] and parts[-1][1] > 0,
          parts)
    bar_is_to_scale("the step", bars[1], [s for _, s in parts], plan["step_s"])
    rows = [(row["axis"], row["sent a step by a rank"], row["exposed"]) for row in p.rows("Traffic")]
    check("traffic", len(rows) == 3 and rows == [(axis, sent, plan["exposed_s"].get(axis, 0))
                                                 for axis, sent in plan["traffic"].items()], rows)
    longest = [widths(svg)[0] for svg in p.svgs if svg.get("viewBox") == "0 0 220 12"]
    check("its bars", all(abs(w - 220 * sent / max(plan["traffic"].values())) < 0.01
                          for w, (_, sent, _) in zip(longest, rows)), longest)
    check("training", [tuple(row.values()) for row in p.rows("Training")] ==
          [tuple(training[key] for key in ("tokens", "seconds", "rank_hours", "dollars", "joules", "failures",
                                           "checkpoint_every_s"))], p.tables["Training"])
    check("the machine's file", MACHINE in p.word("pre"), p.word("pre"))
    check("its job", "  hidden: 64 " in p.word("pre"))
    for words, wanted in [(("model.hidden=512",), ", does not fit"), (("--assume", "dropout=yes"), ">dropout=yes<"),
                          (("--assume", "states=18"), "as assumed")]:
        p, plan = page(*words)
        check(f"{words}: {wanted}", wanted in p.text, p.text)
    p, plan = page("model.hidden=512")
    memory = [plan["memory"][kind] for kind in kinds]
    check("more than there is", not plan["fits"] and len(p.rows("Memory of the fullest rank")) == len(kinds))
    bar_is_to_scale("too much", [svg for svg in p.svgs if svg.get("role") == "img"][0], memory, plan["memory_limit"])
    check("one rank has no traffic", "Traffic" not in p.tables and p.word("h1") == "page on 1 rank of small")
    # Transfers after the last micro-batch are exposed on dp_shard, whatever axis they are of.
    p, plan = page("mesh.dp={replicate: 2, shard: 1}", "--assume", "dp_overlap=no")
    rows = p.rows("Time of a step")
    check("late transfers", list(plan["traffic"]) == ["dp_replicate"] and [list(row.values())[1] for row in rows][:2] ==
          [plan["compute_s"], plan["exposed_s"]["dp_shard"]], rows)
    pathlib.Path("plain.yaml").write_text(re.sub("(price|power|mtbf):.*\n", "", MACHINE))
    p, plan = page(machine="plain.yaml")
    check("what is not known is left out", list(p.rows("Training")[0]) == ["tokens", "time", "rank-hours"], p.tables)


def several():
    p, found = page("--search", "--ranks", "4", "data.batch=8", "model.layers=2")
    best = found["plans"]
    rows = p.rows("The fastest")
    check("the ten best", len(best) == 10 and [row["words"] for row in rows] == [b["words"] for b in best], rows)
    names = {"step": "step_s", "MFU": "mfu", "bubble": "bubble", "memory": "memory", "bound by": "binds",
             "bound": "bound_s"}
    check("their figures", [[row[name] for name in names] for row in rows] ==
          [[b[key] for key in names.values()] for b in best], rows)
    bars = [widths(svg)[0] for svg in p.svgs]
    slowest = max(b["step_s"] for b in best)
    check("their bars", all(abs(w - 220 * b["step_s"] / slowest) < 0.01 for w, b in zip(bars, best)), bars)
    check("the job of the fastest", best[0]["job"] in p.word("pre"), p.word("pre"))
    check("its ranks", p.word("h1") == "page on 4 ranks of small", p.word("h1"))
    p, fewest = page("--fewest", "data.batch=8", machine="tight.yaml")
    fewest = fewest["fewest"]
    check("the fewest ranks", fewest["ranks"] > 1 and p.rows("The fewest ranks") == [
        {"words": fewest["words"], "ranks": fewest["ranks"], "step": fewest["step_s"],
         "memory": fewest["memory"], "bound by": fewest["binds"]}], p.tables)
    p, plans = page("--sweep", "data.micro_batch=1,3,64", "--compare", "a<b> & c.yaml")
    rows = p.rows("job.yaml on small")
    for row, plan in zip(rows, plans["plans"], strict=True):
        if "error" in plan:
            check("a refusal", list(row.values()) == [plan["words"], f"refused: {plan['error']}"], row)
        else:
            check("a row", [row[name] for name in ("words", "step", "tokens/s", "MFU", "bubble")] ==
                  [plan[key] for key in ("words", "step_s", "tokens_per_s", "mfu", "bubble")], (row, plan))
    check("all kinds of rows", ["error" in plan for plan in plans["plans"]] == [False, True, False, False], plans)
    check("a file's name is escaped", "a&lt;b&gt; &amp; c.yaml" in p.text and "a<b>" not in p.text)
    done = subprocess.run([HEDDLE, "plan", "job.yaml", "--machine", "m.yaml", "--json", "--sweep", b"data.train=\xff"],
                          capture_output=True)
    check("words that are not UTF-8", json.loads(done.stdout)["plans"][0]["words"] == "data.train=\ufffd", done)
    p, plans = page("--sweep", "data.train=<b>&amp;,\"c\"", job="a<b> & c.yaml")
    check("words are escaped", p.rows("a<b> & c.yaml on small")[0]["words"] == "data.train=<b>&amp;", p.tables)
    check("and the heading", p.word("title") == "a<b> & c.yaml on small", p.word("title"))


def scaling():
    p, plans = page("--scaling", "2,8,48", "model.layers=2")
    rows = p.rows("Scaling")
    names = {"": "kind", "ranks": "ranks", "batch": "batch", "step": "step_s", "tokens/s": "tokens_per_s", "efficiency":
             "efficiency", "MFU": "mfu", "exposed": "exposed_s", "empty places": "empty", "bound by": "binds"}
    check("rows", [[row[name] for name in names] for row in rows] ==
          [[plan[key] for key in names.values()] for plan in plans["scaling"]], rows)
    lines = [line.get("points").split() for svg in p.svgs for line in svg.iter("polyline")]
    check("strong and weak, in two panels", [len(line) for line in lines] == [3, 3, 3, 3], lines)
    y = [[float(point.split(",")[1]) for point in line] for line in lines]
    steps = [[plan["step_s"] for plan in plans["scaling"] if plan["kind"] == kind] for kind in ("strong", "weak")]
    check("curves", all((a < b) == (s > t) for line, step in zip(y, steps)  # a longer step is higher up
                        for a, b, s, t in zip(line, line[1:], step, step[1:])), (y, steps))


def refusals():
    mine = pathlib.Path("mine.html")
    mine.write_text("of yesterday")
    os.symlink("p.html", "link.html")
    for name, words, says in [("mine.html", (), "mine.html is there, and heddle did not write it"),
                              ("job.yaml", (), "job.yaml is there, and heddle did not write it"),
                              ("link.html", (), "a symbolic link"), (".", (), "."), ("", (), "--html is given an empty value"),
                              ("-x", (), "--html wants a file"), ("--json", (), "--html needs a value"),
                              ("no/such.html", (), "no/such.html: No such file or directory"),
                              ("a.html", ("--html", "b.html"), "--html is given twice"),
                              ("new.html", ("mesh.tp=3",), "mesh.tp"), ("new.html", ("--scaling", "x"), "--scaling x"),
                              ("new.html", ("--search", "--tokens", "1B"), "--tokens is of a single plan")]:
        done = run("--html", name, *words)
        check(f"refuses --html {name} {words}", done.returncode == 2 and says in done.stderr and not done.stdout, done)
    check("a file of others is as it was", mine.read_text() == "of yesterday")
    check("no empty page is left", not os.path.exists("new.html"))
    before = pathlib.Path("p.html").read_text()
    check("nor is an older one touched", run("--html", "p.html", "mesh.tp=3").returncode == 2 and
          pathlib.Path("p.html").read_text() == before)
    if os.path.exists("/dev/full"):
        done = run("--html", "/dev/full")
        check("a full disk is said", done.returncode == 1 and "/dev/full: cannot be written" in done.stderr, done)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("job.yaml").write_text(JOB)
        pathlib.Path("a<b> & c.yaml").write_text(JOB)
        pathlib.Path("m.yaml").write_text(MACHINE)
        pathlib.Path("tight.yaml").write_text(MACHINE.replace("100MB", "4MB"))
        single()
        several()
        scaling()
        refusals()
        os.chdir("/")
    return end()


sys.exit(main())
