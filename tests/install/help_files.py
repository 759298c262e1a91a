#!/usr/bin/env python3
"""The manual page and the completions have every command and every flag that `heddle help` has; man reads the page without a warning, and
bash and zsh complete by it.
usage: help_files.py HEDDLE FOLDER     FOLDER: where heddle.1, heddle and _heddle were made"""
import os
import re
import shutil
import subprocess
import sys

heddle, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, **more)


def read(name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return f.read()


def expect(true, what):
    if not true:
        sys.exit(f"help-files: {what}")


names = re.findall(r"^  ([a-z]+) +\S", run(heddle, "help").stdout, re.M)
flags = {name: set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", run(heddle, "help", name).stdout.split("\nexample:")[0])) for name in names}
expect(len(names) > 10 and sum(map(len, flags.values())) > 40, "heddle help lists few commands")

# ---- the page
page = read("heddle.1").replace("\\-", "-")
sections = dict(re.findall(r"^\.SS heddle ([a-z]+): .*\n((?:(?!\.S[SH] ).*\n)*)", page, re.M))
for name in names:
    expect(name in sections, f"heddle.1 has no heddle {name}")
    for flag in flags[name]:
        expect(flag in sections[name], f"heddle.1 has no {flag} of heddle {name}")
expect("done" in page.split(".SH EXIT STATUS")[1], "heddle.1 has no exit codes")
if shutil.which("groff"):
    made = run("groff", "-man", "-ww", "-Tutf8", "-z", os.path.join(folder, "heddle.1"))
    expect(made.returncode == 0 and not made.stderr, f"groff says of heddle.1:\n{made.stderr}")


# ---- bash
def completed(*words):
    script = f"""PATH={os.path.dirname(heddle)}:$PATH; . {folder}/heddle; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _heddle
                 printf '%s\\n' "${{COMPREPLY[@]}}" """
    made = run("bash", "-c", script, "bash", "heddle", *words, cwd=os.path.join(folder, ".."))
    expect(made.returncode == 0 and not made.stderr, f"completing {words}: {made.stderr}")
    return set(made.stdout.split("\n")) - {""}


expect(completed("") == set(names) | {"help"}, f"bash completes commands as {completed('')}")
for name in names:
    expect(completed(name, "--") >= flags[name], f"bash completes heddle {name} -- as {completed(name, '--')}, not {flags[name]}")
expect(completed("train", "job.yaml", "optimizer.u") == {"optimizer.use="}, "bash completes no key of a job")
expect(completed("train", "job.yaml", "mesh.t") == {"mesh.tp="}, "bash completes no key of a job")
expect(completed("ckpt", "ver") == {"verify"}, "bash completes no verb of heddle ckpt")
expect(completed("plugins", "optim-ada") >= {"optim-adamw", "optim-adamw8"}, "bash completes no plugin")
expect(not completed("sample", "job.yaml", "--prompt", "--"), "bash completes a flag where a flag's value is wanted")

# ---- zsh, where it is installed
if shutil.which("zsh"):
    made = run("zsh", "-f", "-n", os.path.join(folder, "_heddle"))
    expect(made.returncode == 0 and not made.stderr, f"zsh cannot read _heddle: {made.stderr}")
    fake = "compadd() { while [[ $1 != -- ]]; do shift; done; shift; print -l -- $@ }; _describe() { print -l -- ${commands%%:*} }; _files() { :; }; "
    for name in names:
        script = fake + f'words=(heddle {name} x --); CURRENT=4; PREFIX=--; f() {{ source {folder}/_heddle }}; f'
        made = run("zsh", "-f", "-c", script, env={**os.environ, "PATH": os.path.dirname(heddle) + ":" + os.environ["PATH"]})
        expect(not made.stderr and set(made.stdout.split()) >= flags[name], f"zsh completes heddle {name} -- as {made.stdout.split()} {made.stderr}")
print(f"{len(names)} commands, {sum(map(len, flags.values()))} flags")
