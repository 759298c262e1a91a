#!/usr/bin/env python3
"""Runs a page's worked example: the files that it shows (<!-- file: NAME -->) and its commands (<!-- run -->), whose
output has to be what the page prints. `...` stands for any lines, or for a part of a line.

    walk.py PAGE HEDDLE [FILE]...        FILEs, as NAME=PATH, are there before
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PAGE, HEDDLE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
GIVEN = [(name, pathlib.Path(path).resolve()) for name, path in (word.split("=", 1) for word in sys.argv[3:])]
BLOCK = re.compile(r"^<!-- (run|file: (\S+)) -->\n```\w*\n(.*?)^```$", re.S | re.M)


def matches(printed, shown):
    """Lines of output against lines of the page."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(matches(printed[n:], shown[1:]) for n in range(len(printed) + 1))
    line = ".*".join(re.escape(part) for part in shown[0].split("..."))
    return bool(printed) and re.fullmatch(line, printed[0].rstrip()) is not None and matches(printed[1:], shown[1:])


def run(block, environment):
    wrong = commands = 0
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=300)
        commands += 1
        if done.returncode or not matches(done.stdout.splitlines(), shown.splitlines()):
            wrong += 1
            print(f"FAILED {command}\nexit code {done.returncode}, it prints\n{done.stdout}{done.stderr}"
                  f"where the page has\n{shown}")
    return commands, wrong


def main():
    commands = wrong = 0
    environment = dict(os.environ, PATH=f"{HEDDLE.parent}:{os.environ['PATH']}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, path in GIVEN:
            shutil.copy(path, name)
        for kind, name, text in BLOCK.findall(PAGE.read_text()):
            if kind == "run":
                ran, failed = run(text, environment)
                commands, wrong = commands + ran, wrong + failed
            else:
                pathlib.Path(name).write_text(text)
        os.chdir("/")
    print(f"{commands - wrong} passed, {wrong} failed")
    return wrong > 0 or not commands


sys.exit(main())
