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
old=$(nvcc 12.4 sm_50 sm_80 sm_89 sm_90) new=$(nvcc 13.0 sm_75 sm_80 sm_90 sm_100 sm_103)
all='-gencode=arch=compute_80,code=[sm_80,sm_90,compute_80] '
wgmma='-gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90a,code=sm_90a '
blackwell='-gencode=arch=compute_100,code=[sm_100,compute_100] '

# prints WORDS NVCC SOURCE
prints() {
    [ "$("$archs" "$2" "$3" | tr '\n' ' ')" = "$1" ]
    verdict $? "$(basename "$2"), $3: $1"
}
prints "$all" "$old" kernels/norm
prints "$wgmma" "$old" attention/attention_wgmma.cu
prints "$all$blackwell" "$new" attention/attention_forward.cu
prints "$wgmma$blackwell" "$new" attention/attention_wgmma
! "$archs" "$work/none" kernels/norm >/dev/null 2>&1
verdict $? "no nvcc"

finish
