#!/usr/bin/env python3
"""What `heddle explain --json` prints of every rank, and `heddle check --json`, is what it was when it was frozen.

    tests/golden/frozen.py BUILD                # compares; BUILD is a build folder
    tests/golden/frozen.py BUILD --dump DIR     # writes what is compared into DIR as well
    tests/golden/frozen.py BUILD --write        # freezes what this build prints

The jobs are those of tests/analysis/test_mutations.c and examples/. frozen.tsv has a line for each: its name, the SHA-256 of all
ranks' programs, the SHA-256 of the check. A change that means to leave programs alone must leave these alone. Where one differs,
see how with the build before the change and the one after it:

    tests/golden/frozen.py BEFORE --dump a; tests/golden/frozen.py AFTER --dump b; diff -rU 12 a b

A change that means to alter programs writes the file again, and says in its commit which jobs changed, and why.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
FROZEN = pathlib.Path(__file__).resolve().with_name("frozen.tsv")
CLOCK = ("compile_s", "proof_s")  # of a check; nothing else that is printed depends on the machine
COLUMNS = 240  # of a dump: room for a tensor


@functools.lru_cache(maxsize=None)
def number(text):
    """To 15 digits: the last bit of a quotient is the compiler's."""
    return float(f"{float(text):.15g}")


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def pretty(value, margin=""):
    """JSON that diff can read: on one line what fits there."""
    line = json.dumps(value, sort_keys=True)
    if not value or not isinstance(value, (dict, list)) or len(margin) + len(line) <= COLUMNS:
        return line
    more = margin + " "
    if isinstance(value, dict):
        rows, ends = [f"{json.dumps(key)}: {pretty(value[key], more)}" for key in sorted(value)], "{}"
    else:
        rows, ends = [pretty(item, more) for item in value], "[]"
    return ends[0] + "\n" + ",\n".join(more + row for row in rows) + "\n" + margin + ends[1]


class Job:
    """What the command says of one job: `said` by file of a dump, `why` it was refused where it was."""

    def __init__(self, heddle, name, path, folder):
        self.heddle, self.name, self.path, self.folder = heddle, name, path, folder
        self.said, self.why = {}, []
        first = self.ask("explain", "--rank", "0")
        ranks = range(first.get("ranks", 1))
        explained = [first] + [self.ask("explain", "--rank", str(rank)) for rank in ranks[1:]]
        checked = self.ask("check")
        for key in CLOCK:
            checked.pop(key, None)
        self.said = {f"rank{rank}.json": program for rank, program in zip(ranks, explained)}
        self.said["check.json"] = checked
        self.sums = [digest(explained), digest([checked])]

    def ask(self, command, *words):
        """The JSON it prints; of a job that is refused, the exit code."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("HEDDLE_")}
        done = subprocess.run([self.heddle, command, self.path, "--json", *words], capture_output=True, text=True, cwd=self.folder, env=env)
        if done.returncode:
            self.why.append(" ".join([command, *words, "exits with", str(done.returncode) + ":", done.stderr.strip()]))
            return {"exit": done.returncode}
        return json.loads(done.stdout, parse_float=number)

    def dump(self, top):
        folder = pathlib.Path(top, self.name)
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in self.said.items():
            (folder / file).write_text(pretty(value) + "\n", encoding="utf-8")


def digest(values):
    return hashlib.sha256("\n".join(map(canonical, values)).encode()).hexdigest()


def look(heddle, name, path, folder, dump):
    job = Job(heddle, name, path, folder)
    if dump:
        job.dump(dump)
    return name, job.sums, job.why


def all_jobs(build, folder):
    """Name and path of each. Relative paths of a job are of the working folder, so the times that one job reads lie there, too."""
    mutations = build / "tests/analysis/test_mutations"
    if not mutations.exists():
        sys.exit(f"frozen: {mutations} was not built")
    done = subprocess.run([mutations, "--jobs", folder], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"frozen: test_mutations --jobs exits with {done.returncode}\n{done.stdout}{done.stderr}")
    for where, files in ("mutations", pathlib.Path(folder)), ("examples", TOP / "examples"):
        for path in sorted(files.glob("*.yaml")):
            yield f"{where}/{path.stem}", path


def ask_all(build, dump):
    """By job: the two sums, and why it was refused. Two at a time."""
    with tempfile.TemporaryDirectory(prefix="heddle-frozen-") as folder, concurrent.futures.ProcessPoolExecutor(2) as pool:
        asked = [pool.submit(look, build / "heddle", name, path, folder, dump) for name, path in all_jobs(build, folder)]
        return {name: (sums, why) for name, sums, why in (a.result() for a in asked)}


def read():
    rows = [line.split("\t") for line in FROZEN.read_text(encoding="utf-8").splitlines()]
    return {name: sums for name, *sums in rows}


def write(said):
    rows = ["\t".join([name, *sums]) for name, (sums, _) in said.items()]
    FROZEN.write_text("\n".join(rows) + "\n", encoding="utf-8")


def compare(said, frozen):
    """What is wrong with each job that is not as it was."""
    for name in sorted(said.keys() | frozen.keys()):
        if name not in said:
            yield f"{name}: there is no such job any more"
        elif name not in frozen:
            yield f"{name}: was never frozen"
        elif said[name][0] != frozen[name]:
            differ = [word for word, now, then in zip(("explain", "check"), said[name][0], frozen[name]) if now != then]
            yield "\n  ".join([f"{name}: {' and '.join(differ)} changed", *said[name][1]])


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("build", type=pathlib.Path)
    words.add_argument("--dump", metavar="DIR", type=pathlib.Path)
    words.add_argument("--write", action="store_true")
    given = words.parse_args()
    said = ask_all(given.build.resolve(), given.dump and given.dump.resolve())
    if given.write:
        write(said)
    frozen = read()
    faults = list(compare(said, frozen))
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print(f"see how: {sys.argv[0]} BUILD --dump DIR, for this build and for one before the change; diff -rU 12 DIR DIR", file=sys.stderr)
    # As Check prints it, for tools/count-checks.awk: a job is one check.
    checks = len(said.keys() | frozen.keys())
    print(f"{100 * (checks - len(faults)) // checks}%: Checks: {checks}, Failures: {len(faults)}, Errors: 0")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
