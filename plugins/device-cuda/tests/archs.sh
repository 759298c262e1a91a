#!/usr/bin/env bash
# What kernels are compiled for follows the nvcc: with that of CUDA 12.0 to 12.7, which knows no sm_100, without that.   archs.sh ARCHS
set -u
archs=$(realpath "$1")
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "$0")/checks.sh"

# nvcc NAME CODE...: one that knows these.
nvcc() {
    local at=$work/$1
    shift
    printf '#!/bin/sh\n[ "$1" = --list-gpu-code ] && printf "%%s\\n" %s\n' "$*" >"$at"
    chmod +x "$at"
    echo "$at"
}
old=$("$archs" "$(nvcc 12.4 sm_50 sm_80 sm_89 sm_90)" | tr '\n' ' ') new=$("$archs" "$(nvcc 13.0 sm_75 sm_80 sm_90 sm_100 sm_103)" | tr '\n' ' ')
[ "$old" = "-gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90a,code=sm_90a " ]
verdict $? "CUDA 12.4: $old"
[ "$new" = "$old-gencode=arch=compute_100,code=[sm_100,compute_100] " ]
verdict $? "CUDA 13.0: $new"
! "$archs" "$work/none" >/dev/null 2>&1
verdict $? "no nvcc"

finish
