#!/usr/bin/env python3
"""tests/gpu/build compiles what meson compiles: every part of its list has the sources that the part has in this build, and every plugin and
suite that tests/gpu/run takes is a part.   plain.py TOP BUILD"""
import collections
import json
import pathlib
import re
import subprocess
import sys

TOP, BUILD = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
LIBRARIES = {"harness": "conformance/libconformance_device.a", "ranks": "conformance/libconformance_ranks.a",
             "faults": "conformance/libconformance_faults.a", "conf_fail": "tests/device/libtest_conf_fail.a"}
failed, checks = [], 0


def check(holds, what):
    global checks
    checks += 1
    if not holds:
        failed.append(what)
        print("failed:", what)


def plain():
    parts = collections.defaultdict(set)
    for line in subprocess.run([TOP / "tests/gpu/build", "--list"], capture_output=True, text=True, check=True).stdout.splitlines():
        part, source = line.split()[:2]
        parts[part].add(source)
    return parts


def by_meson():
    parts = collections.defaultdict(set)
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if source.is_relative_to(TOP):
            parts[entry["output"].split(".p/")[0]].add(str(source.relative_to(TOP)))
    objects = {file.stem for file in (BUILD / "plugins/device-cuda").glob("*.ptxas")}  # nvcc is no compiler of meson's
    kernels = {str(file.relative_to(TOP)) for file in (TOP / "plugins/device-cuda").rglob("*.cu") if file.stem in objects}
    parts["plugins/device-cuda/heddle-device-cuda.so"] |= kernels
    for part in [part for part in parts if part.startswith("libheddle_")]:  # a library a room
        parts["core"] |= parts[part]
    return parts


def main():
    ours, theirs = plain(), by_meson()
    for part, sources in ours.items():
        of_meson = {source.replace("data-tokens/http.c", "data-tokens/http_missing.c") for source in theirs[LIBRARIES.get(part, part)]}
        check(sources == of_meson, f"{part}: {' '.join(sorted(sources ^ of_meson))} in one of both alone")
    # they want libraries of their own
    machine = {"plugins/ckpt-s3", "plugins/comm-mpi", "plugins/comm-libfabric", "plugins/metrics-prometheus", "plugins/tokenizer-bpe", "plugins/tokenizer-sentencepiece"}
    plugins = {str(pathlib.PurePath(part).parent) for part in theirs if re.match(r"plugins/[^/]*/heddle-", part)}
    check(not plugins - machine - {str(pathlib.PurePath(part).parent) for part in ours}, f"all plugins but {machine}")
    script = (TOP / "tests/gpu/run").read_text()
    for room, pattern in ("tests/device/test_device_", r"device_suites='([^']*)'"), ("plugins/device-cuda/tests/test_cuda_", r'cuda_suites="([^$]*)\$'):
        for suite in re.search(pattern, script)[1].split():
            check(room + suite in ours, f"{room}{suite}, which tests/gpu/run wants")
    print(f"100%: Checks: {checks}, Failures: {len(failed)}, Errors: 0")
    sys.exit(bool(failed))


main()
