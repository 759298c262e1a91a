#!/usr/bin/env python3
"""Freezes the public ABI: writes abi_v1.c (an assert for every constant and field) and, with abidw, abi_v1.abi.

    python3 tests/core/plugin/abi/freeze.py

Only the build of abi_v1.c and a comparison of abi_v1.abi run as tests; this script runs by hand. Before 1.0 is released it may
rewrite anything. After a release it may only add lines: `git diff` must show no line removed or changed.
"""
import os
import re
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, "..", "..", "..", "..", "include")
HEADERS = ["types", "host", "plugin", "ops", "program", "device", "comm", "optimizer", "ckpt", "model", "hook", "data",
           "metrics", "tokenizer", "strategy"]
MACROS_LEFT_OUT = {"HD_ABI_MINOR", "HD_AXIS_COUNT", "HD_STREAM_COUNT"}  # they grow

HEAD = """/* Made by freeze.py. Every constant and every field of the public ABI, as ABI 1.0 has it: a build that fails here
 * breaks plugins that are already built. Fields and constants may be appended, nothing else may change. Before the
 * release of 1.0, or after appending: python3 tests/core/plugin/abi/freeze.py, and look at the diff.
 *
 * The function at the end of each struct makes it visible in the library's debug information, which abi_v1.abi
 * shows. */
%s
#if UINTPTR_MAX != UINT64_MAX
#error "the frozen offsets are those of 64-bit pointers"
#endif

#define CONSTANT(name, value) _Static_assert((name) == (value), #name " has changed: see the top of this file")
#define STRUCT(type, bytes)                                                          \\
    _Static_assert(sizeof(struct type) >= (bytes), "struct " #type " has shrunk");     \\
    void abi_##type(const struct type *p);                                           \\
    void abi_##type(const struct type *p)                                            \\
    {                                                                                \\
        (void)p;                                                                     \\
    }                                                                                \\
    _Static_assert(1, "")
#define FIELD(type, field, at, ...)                                                                       \\
    _Static_assert(offsetof(struct type, field) == (at), #type "." #field " has moved: see the top");                    \\
    _Static_assert(__builtin_types_compatible_p(__typeof__(((struct type *)0)->field), __VA_ARGS__),        \\
                   #type "." #field " has another type: see the top")

_Static_assert(sizeof HD_PLUGIN_MAGIC == 9, "HD_PLUGIN_MAGIC has changed");
_Static_assert(__builtin_memcmp(HD_PLUGIN_MAGIC, "heddle\\n\\x1a", 9) == 0, "HD_PLUGIN_MAGIC has changed");
_Static_assert(__builtin_strcmp(HD_PLUGIN_SYMBOL, "heddle_plugin_v1") == 0, "HD_PLUGIN_SYMBOL has changed");
"""


def cc(*args, **kw):
    return subprocess.run(["cc", "-std=gnu11", "-I", INCLUDE, *args], check=True, stdout=subprocess.PIPE, text=True, **kw).stdout


def includes():
    return "".join(f'#include "heddle/{h}.h"\n' for h in HEADERS)


def preprocessed():
    """Our own headers' lines only, expanded, so that X-macros are enums."""
    text, ours = [], False
    for line in cc("-E", "-", input=includes()).splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            ours = "heddle/" in marker.group(1)
        elif ours:
            text.append(line)
    return re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)", "", " ".join(text))


def constants(text):
    names = []
    for body in re.findall(r"\benum\s*\{([^}]*)\}", text):
        names += [item.split("=")[0].strip() for item in body.split(",") if item.strip()]
    for line in cc("-dM", "-E", "-", input=includes()).splitlines():
        macro = re.match(r"#define (HD_[A-Z0-9_]+) (.*)", line)
        if macro and re.fullmatch(r"[\s()\d<|a-fxA-FUINT_C64]*\d[\s()\d<|a-fxA-FUINT_C64]*", macro.group(2)):
            names.append(macro.group(1))
    return sorted(set(names) - MACROS_LEFT_OUT, key=names.index)


def field(declaration):
    """Yields (name, type) of one declaration of a struct."""
    declaration = " ".join(declaration.split())
    slot = re.match(r"(.*?\(\*)(\w+)(\)\(.*)", declaration)
    if slot:
        yield slot.group(2), slot.group(1) + slot.group(3)
        return
    base, first = re.match(r"((?:const )?(?:struct )?\w+(?: const)?(?:(?= \*)| ))(.*)", declaration).groups()
    for item in first.split(","):
        stars, name, array = re.match(r"\s*((?:\*\s*(?:const)?\s*)*)(\w+)(.*)", item).groups()
        yield name, " ".join((base + " " + stars + array).split())


def structs(text):
    for name, body in re.findall(r"\bstruct (hd_\w+)\s*\{([^{}]*)\}\s*;", text):
        yield name, [f for d in body.split(";") if d.strip() for f in field(d)]


def measure(names, layouts):
    """The compiler's own numbers."""
    lines = [f'printf("%lld\\n", (long long)({n}));' for n in names]
    for name, fields in layouts:
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        lines += [f'printf("%zu\\n", offsetof(struct {name}, {f}));' for f, _ in fields]
    with tempfile.TemporaryDirectory() as folder:
        exe = os.path.join(folder, "measure")
        cc("-x", "c", "-", "-o", exe, input=includes() + "int main(void){" + "".join(lines) + "return 0;}")
        return iter(subprocess.run([exe], check=True, capture_output=True, text=True).stdout.split())


def main():
    text = preprocessed()
    names, layouts = constants(text), list(structs(text))
    numbers = measure(names, layouts)
    out = [HEAD % includes()]
    out += [f"CONSTANT({n}, {next(numbers)});" for n in names]
    for name, fields in layouts:
        out.append(f"\nSTRUCT({name}, {next(numbers)});")
        out += [f"FIELD({name}, {f}, {next(numbers)}, {t});" for f, t in fields]
    with open(os.path.join(HERE, "abi_v1.c"), "w") as file:
        file.write("\n".join(out) + "\n")
    subprocess.run(["sh", os.path.join(HERE, "compare.sh"), "--write"], check=True)


main()
