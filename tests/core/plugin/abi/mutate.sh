#!/bin/sh
# The frozen asserts, asked to fail: each change below would break plugins that are already built, and abi_v1.c must
# name it. Then the changes that are allowed, which it must let pass.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/heddle-mutate-XXXXXX")
trap 'rm -rf "$work"' EXIT

# compile EXPRESSION HEADER: abi_v1.c against headers of which one was changed by sed.
compile()
{
    rm -rf "$work/include"
    cp -r "$here/../../../../include" "$work/include"
    sed "$1" "$here/../../../../include/heddle/$2" >"$work/include/heddle/$2"
    if cmp -s "$work/include/heddle/$2" "$here/../../../../include/heddle/$2" && [ -n "$1" ]; then
        echo "mutate: '$1' changes nothing in $2" >&2
        exit 1
    fi
    ${CC:-cc} -std=gnu11 -fsyntax-only -I"$work/include" "$here/abi_v1.c" 2>"$work/log"
}

broken()
{
    if compile "$1" "$2"; then
        echo "mutate: $2 with '$1' passes" >&2
        exit 1
    fi
    grep -q -- "$3" "$work/log" || { echo "mutate: $2 with '$1': no '$3' in:" >&2; cat "$work/log" >&2; exit 1; }
}

allowed()
{
    compile "$1" "$2" || { cat "$work/log" >&2; exit 1; }
}

allowed '' types.h
broken 's/    uint32_t n_states;/    uint64_t inserted;\n    uint32_t n_states;/' optimizer.h 'hd_optimizer_ops.n_states has moved'
broken 's/^    uint64_t count;$/    int64_t count;/' comm.h 'hd_comm_call.count has another type'
broken 's/const void \*data, uint64_t bytes,$/const void *data, uint32_t bytes,/' ckpt.h 'hd_ckpt_ops.write has another type'
broken 's/uint64_t count, int64_t \*tokens,/uint64_t count, int32_t *tokens,/' data.h 'hd_data_ops.read has another type'
broken 's/^    uint32_t reserved;$/    uint32_t unit, reserved;/' metrics.h 'hd_metric.reserved has moved'
broken 's/X(HD_E_IO, -4,/X(HD_E_IO, -14,/' types.h 'HD_E_IO has changed'
broken 's/X(HD_OP_RMSNORM, 5,/X(HD_OP_RMSNORM, 105,/' ops.h 'HD_OP_RMSNORM has changed'
broken 's/HD_OPTION_GLOBAL (UINT32_C(1) << 0)/HD_OPTION_GLOBAL (UINT32_C(1) << 9)/' plugin.h 'HD_OPTION_GLOBAL has changed'
broken 's/"heddle\\n\\x1a"/"hoddle\\n\\x1a"/' plugin.h 'HD_PLUGIN_MAGIC has changed'
broken 's/    size_t n_aliases;/    size_t inserted;\n    size_t n_aliases;/' plugin.h 'hd_component.n_aliases has moved'
broken '/double (\*clip)/d' optimizer.h 'hd_optimizer_ops'
broken 's/^    uint64_t seq; /    uint64_t inserted;\n    uint64_t seq; /' hook.h 'hd_hook_op.seq has moved'
broken 's/HD_HOOK_HOLD 1/HD_HOOK_HOLD 2/' hook.h 'HD_HOOK_HOLD has changed'
allowed 's/^\(    void (\*state)(.*\)$/\1\n    int32_t (*appended)(void);/' optimizer.h
allowed 's/#define HD_ABI_MINOR 2/#define HD_ABI_MINOR 3/' types.h
