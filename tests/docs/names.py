#!/usr/bin/env python3
"""What the pages name is there: files and links, commands and their options, keys of job files, plugins, names of the headers.
usage: names.py HEDDLE [PAGE.md...]      from anywhere; without pages, all of the tree's"""
import glob
import os
import re
import subprocess
import sys

top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
heddle = os.path.abspath(sys.argv[1])
# Where a path in a page may begin: the top, the page's own folder, and the folders that a page's text speaks of.
bases = {"docs/architecture.md": ["core/program", "core/passes", "core/verify", "analysis/sim", "runtime/exec"], "docs/transports.md": ["runtime/comm/algorithms"]}
made = re.compile(r"^(build|runs|corpus|VENV|LIBDIR|FOLDER|NAME|/|~|site-packages|nvidia/|refs/)")
kinds = {"optimizer": "optim", "model": "model", "device": "device", "comm": "comm", "checkpoint": "ckpt", "data": "data"}
endings = {"c", "h", "cc", "cu", "yaml", "safetensors", "jsonl", "json", "weight", "md"}  # of files and tensors that begin like a section
faults = []


def fault(page, line, what):
    faults.append(f"{page}:{line}: {what}")


def run(*words):
    return subprocess.run([heddle, *words], capture_output=True, text=True, cwd=top)


def read(path):
    with open(os.path.join(top, path), encoding="utf-8") as f:
        return f.read()


def all_pages():
    for folder, folders, files in os.walk(top):
        folders[:] = [d for d in folders if not d.startswith((".", "build")) and d not in ("runs", "corpus", "node_modules")]
        for name in files:
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(folder, name), top)


# ---- what there is

def anchor(title):
    """GitHub's name of a heading."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def anchors(path):
    text = re.sub(r"```.*?```", "", read(path), flags=re.S)
    return {anchor(re.sub(r"`", "", m)) for m in re.findall(r"^#+ (.*)$", text, re.M)}


def commands():
    """Each command's help, and what the overview lists."""
    names = re.findall(r"^  ([a-z]+)  +", run("help").stdout, re.M)
    return {name: run("help", name).stdout for name in names}


def options():
    """Each plugin's options with their aliases, from its sources: one that is left out of this build has its pages, too."""
    found = {}
    for folder in os.listdir(os.path.join(top, "plugins")):
        words = found.setdefault(folder, set())
        for path in glob.glob(os.path.join(top, "plugins", folder, "**", "*.[ch]"), recursive=True):
            if "/tests/" in path[len(top):]:
                continue
            text = read(path)
            for header in re.findall(r'#include "\.\./common/(\w+\.h)"', text):  # rows that several plugins have
                text += re.sub(r"#define \w+\([^)]*\)|\\\n", "\n", read(os.path.join("plugins", "common", header)))
            words |= set(re.findall(r'\.name = "([a-z_0-9.]+)"', text))
            for row in re.findall(r'^\s+[A-Z_]+\(([a-z_0-9]+)?,?(?: ?"([a-z_0-9.]+)")?', text, re.M):  # rows of a macro
                words |= set(row)
            words |= {w for list in re.findall(r'\.aliases = "([^"]+)"', text) for w in list.split("|")}
            for table in re.findall(r"struct hd_alias \w+\[\] = \{(.*?)\n\};", text, re.S):  # other names of the plugin
                for name in re.findall(r'\.name = "([a-z0-9_-]+)"', table):
                    found[folder.split("-")[0] + "-" + name] = words
    return found


class There:
    def __init__(self):
        self.commands = commands()
        self.options = options()
        self.headers = "\n".join(read(os.path.join(d, f)) for d, _, fs in os.walk(os.path.join(top, "include")) for f in fs)
        self.sources = self.headers + "\n".join(
            read(os.path.join(d, f)) for room in ("core", "runtime", "service", "analysis", "plugins", "tests", "examples", "bench")
            for d, _, fs in os.walk(os.path.join(top, room)) for f in fs if f.endswith((".h", ".c", ".cu", ".cc", ".build")))
        # The core's keys stand in docs/job-file.md, which tests/core/job compares with the command's own tables.
        self.core_keys = {}
        for section, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", read("docs/job-file.md"), re.S | re.M):
            table = "\n".join(re.findall(r"```\n(.*?)```", body, re.S))
            names = set(re.findall(r"^([a-z_]+)  +", table, re.M)) - {"option"}
            for also in re.findall(r"also called ([a-z_, ]+)", table):
                names |= {a.strip() for a in also.split(",")}
            for s in section.split(", "):
                self.core_keys[s] = names | self.core_keys.get(s, set())
        self.plugin_keys = {}
        for section, kind in kinds.items():
            self.plugin_keys[section] = {"use"}
            for plugin, names in self.options.items():
                if plugin.startswith(kind + "-"):
                    self.plugin_keys[section] |= names


# ---- what a page says

def paths(page, line, text, base):
    for word in re.findall(r"`([^`\s]+)`", text):
        word = word.rstrip("/:,;")
        parts = word.split(":")[0]
        if "*" in parts or "$" in parts or "<" in parts or re.search(r"[A-Z]{4}", parts) or made.match(parts):
            continue
        is_path = re.fullmatch(r"[\w.+-]+(/[\w.+-]+)+", parts) and parts.split("/")[0] in roots
        is_source = re.fullmatch(r"[\w/+-]+\.(c|h|cu|cc|py|sh|build)", parts)
        if not (is_path or is_source):
            continue
        parts = re.sub(r"\.$", "", parts)
        there = [os.path.join(b, parts) for b in ["", os.path.dirname(page), "include", *base]]
        if not any(os.path.exists(os.path.join(top, p)) for p in there):
            fault(page, line, f"there is no file {word}")


def links(page, line, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, name = target.partition("#")
        full = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(os.path.join(top, full)):
            fault(page, line, f"the link {target} leads nowhere")
        elif name and full.endswith(".md") and name not in anchors(full):
            fault(page, line, f"the link {target}: {full} has no such heading")


def command_lines(page, line, text, there):
    """`heddle NAME ...`, in code or beginning a line of it: the command exists, and its help says each --option."""
    for words in re.findall(r"(?:^\s*(?:\$ )?|`|[=|&] ?|\blevel\S* )(?:build/)?heddle ((?:[a-z]+\b)[^`|\n]*)", text):
        name = words.split()[0]
        if name not in there.commands:
            if name not in ("help",) and ("`heddle " + name in text or re.match(r"\s+(build/)?heddle ", text)):
                fault(page, line, f"there is no command heddle {name}")
            continue
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", words.split("   #")[0]):
            if option not in there.commands[name]:
                fault(page, line, f"heddle {name} has no {option}")


def keys(page, line, text, there):
    """section.key: keys of the core's tables or of a plugin that the section may name."""
    for section, key in re.findall(r"(?<![\w./-])(" + "|".join(sorted(there.core_keys)) + r")\.([a-z_0-9]+)(?![\w/(]|\.[a-z])", text):
        if section == "strategies" or key in endings:
            continue
        known = there.core_keys[section] | there.plugin_keys.get(section, set())
        if not any(k.split(".")[0] == key for k in known):
            fault(page, line, f"{section} has no key {key}")
    for name, key in re.findall(r"strategies\.([a-z0-9]*[a-z][a-z0-9]*)\.([a-z_]+)", text):
        options = there.options.get("strategy-" + name)
        if options is None:
            fault(page, line, f"there is no strategy {name}")
        elif key != "use" and not any(k.split(".")[0] == key for k in options):
            fault(page, line, f"strategy-{name} has no option {key}")


def names(page, line, text, there):
    for name in re.findall(r"\b(HD_[A-Z0-9_]+)\b", text):
        if not re.search(r"\b" + name + (r"\w*" if name.endswith("_") else r"\b"), there.sources):
            fault(page, line, f"no header has {name}")
    for name in re.findall(r"`(?:core/)?\b(hd__?[a-z0-9_]+)\b", text):
        if not re.search(r"\b" + name + r"\b", there.sources):
            fault(page, line, f"no source has {name}")


def width(page, line, text):
    """Prose of the pages that users read has at most 120 columns. Tables cannot be wrapped, and printed text is as it is."""
    read_by_users = page.startswith("docs/") or page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
    if read_by_users and len(text) > 120 and not text.startswith(("|", "    ", "[", "![")):
        fault(page, line, f"{len(text)} columns, and 120 are the limit")


def check(page, text, there):
    base = bases.get(page, [])
    in_code = False
    tables = None
    for number, row in enumerate(text.split("\n"), 1):
        if row.startswith("```"):
            in_code = not in_code
        if not in_code:
            paths(page, number, row, base)
            links(page, number, row)
            width(page, number, row)
        command_lines(page, number, row, there)
        keys(page, number, row, there)
        names(page, number, row, there)
        # A row of a table that stands alone is printed as it is: its table ended at an empty line.
        if not in_code:
            if row.startswith("|"):
                tables = tables or [number, False]
                tables[1] = tables[1] or bool(re.fullmatch(r"\|[-:| ]+\|", row))
            elif tables:
                if not tables[1]:
                    fault(page, tables[0], "a table without a head")
                tables = None


# A page with one fault of each kind: what does not find them finds nothing.
PLANTED = """
`core/run/nowhere.c` [gone](nowhere.md) [gone](README.md#nowhere)

    heddle trane job.yaml
    heddle train job.yaml --frobnicate

`optimizer.lrate` `data.bach_size` strategies.zero.stag=3 strategies.nero.stage=3 `HD_NOWHERE` `hd_nowhere()`

| a row | without a head |

""" + "wide " * 25


def main():
    there = There()
    if not there.commands or not all(there.plugin_keys.values()):
        sys.exit("names: the command lists no commands, or there are no plugins")
    pages = sys.argv[2:] or sorted(all_pages())
    for page in pages:
        check(page, read(page), there)
    found = list(faults)
    faults.clear()
    check("README.md", PLANTED, there)
    if len(faults) != 13:
        found.append("names: of 13 planted faults these are found:\n  " + "\n  ".join(faults))
    print(f"{len(pages)} pages, {len(faults)} planted faults found")
    for f in found:
        print(f, file=sys.stderr)
    sys.exit(1 if found else 0)


roots = {d for d in os.listdir(top) if os.path.isdir(os.path.join(top, d)) and not d.startswith(("build", "."))} - {"runs", "corpus"}
main()
