#!/usr/bin/env python3
"""service/launch/detect.c warns of variables HEDDLE_... that nothing reads, so its table has each one that is read.

usage: environment.py TREE
"""
import glob
import os
import re
import sys

tree = sys.argv[1]
ROOMS = ("core", "runtime", "service", "analysis", "cli", "plugins", "include")
texts = {}
for room in ROOMS:
    for path in glob.glob(os.path.join(tree, room, "**", "*.[ch]"), recursive=True):
        if "/tests/" not in path[len(tree):]:
            with open(path) as file:
                texts[os.path.relpath(path, tree)] = file.read()
macros = dict(pair for text in texts.values() for pair in re.findall(r'#define (\w+) "(HEDDLE_\w+)"', text))


def names(text):
    """The variables of an expression, by their texts or by macros of them."""
    return [word or macros[macro] for word, macro in re.findall(r'"(HEDDLE_[A-Z0-9_]+)"|\b(\w+)\b', text)
            if word or macro in macros]


table = re.search(r"own_names\[\] = \{(.*?)\};", texts["service/launch/detect.c"], re.S)
known = names(table.group(1))
read = {}
for path, text in texts.items():
    if path == "service/launch/detect.c":  # the table, and beginnings of its names
        continue
    for name in re.findall(r'"(HEDDLE_[A-Z0-9_]+)"', text):
        read.setdefault(name, path)
faults = [f"{path}: {name} is not in own_names of service/launch/detect.c: heddle would say that nothing reads it"
          for name, path in read.items()
          if not any(name.startswith(own) if own.endswith("_") else name == own for own in known)]
faults += [f"service/launch/detect.c: own_names has {name}, and nothing reads it" for name in known
           if not name.endswith("_") and name not in read]
if len(known) < 5 or len(read) < 5:
    faults.append("the table or its readers are not found: this test has to follow them")
print("\n".join(faults) or f"{len(read)} variables, all in the table")
sys.exit(bool(faults))
