#!/bin/sh
# C files are as clang-format leaves them. usage: format.sh SOURCE     exit 77: this machine has no clang-format 14
cd "$1" || exit 1
clang-format --version 2>/dev/null | grep -q 'version 14\.' || exit 77
find core runtime service analysis cli include plugins examples bench tests -name '*.[ch]' ! -path 'tests/golden/data/*' -print0 |
    xargs -0 -n 60 clang-format --dry-run --Werror
