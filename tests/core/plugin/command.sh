#!/bin/sh
# The command's shell: help, unknown commands, exit codes, `heddle plugins` and `heddle version`.
# usage: command.sh HEDDLE FAULTY_PLUGINS
set -u
heddle=$1 faulty=$2
export HEDDLE_PLUGIN_PATH=

# try CODE TEXT ARGUMENTS...: runs heddle and compares the exit code and what it prints.
try()
{
    code=$1 text=$2
    shift 2
    out=$("$heddle" "$@" 2>&1)
    got=$?
    [ $got -eq "$code" ] || { echo "heddle $*: exit $got instead of $code: $out" >&2; exit 1; }
    case $out in
    *"$text"*) ;;
    *) echo "heddle $*: '$text' is not in: $out" >&2; exit 1 ;;
    esac
}

# Calls that do not return are waited for longer than device-cuda's probe waits for a driver, 60 s. Here the time is up
# as soon as such a call has begun.
hangs=$(mktemp -d)
trap 'rm -rf "$hangs"' EXIT
hang()
{
    mkdir "$hangs/$1"
    ln -s "$faulty/hangs-$1.so" "$hangs/$1/heddle-optim-hangs.so"
    shown=$hangs/$1/shown said=$hangs/$1/said
    HEDDLE_PLUGIN_PATH=$hangs/$1 "$heddle" $3 >"$shown" 2>"$said" &
    pid=$!
    until grep -q '^hangs, for' "$shown"; do
        kill -0 $pid || { echo "heddle $3: $(cat "$said")" >&2; exit 1; }
        sleep 0.1
    done
    read -r _ _ seconds _ <"$shown"
    [ "$seconds" -gt 60 ] || { echo "heddle $3: $(cat "$shown")" >&2; kill $pid; exit 1; }
    kill -ALRM $pid
    wait $pid
    code=$?
    case "$code $(cat "$said")" in
    "1 error: $2 $hangs/$1/heddle-optim-hangs.so does not return: "*) ;;
    *) echo "heddle $3: exit $code: $(cat "$said")" >&2; exit 1 ;;
    esac
}
hang constructor "a constructor of" plugins
hang probe "the probe of" "test optim-hangs"

try 2 "usage: heddle COMMAND"
try 0 "usage: heddle COMMAND" --help
try 0 "usage: heddle COMMAND" help
try 2 "there is no command 'plugin': did you mean 'plugins'?" plugin
try 2 "there is no command 'zzzzzzzzzz' (" zzzzzzzzzz
try 2 "there is no command 'versio'" help versio
try 0 "heddle 0." version
try 0 '"abi": "1.' version --json
try 0 "heddle 0." --version
try 2 "it does not know '--jsn'" version --jsn

# Every command that the overview lists has its help, both ways, with an example.
commands=$("$heddle" help | sed -n 's/^  \([a-z]*\)  *.*/\1/p')
[ -n "$commands" ] || exit 1
for c in $commands; do
    try 0 "example:" help "$c"
    try 0 "usage: heddle $c" "$c" --help
    try 0 "usage: heddle $c" "$c" -h
done

try 0 "AdamW" plugins
try 0 "optim-adamw: AdamW" plugins optim-adamw
try 0 "weight_decay" plugins optim-adamw
try 0 '"name": "weight_decay"' plugins optim-adamw --json
try 0 '"usable": true' plugins --json
try 0 "hook-faults: makes the Nth operation" plugins hook-faults
try 0 '"kind": "hook"' plugins hook-check --json
try 0 "also called ddp, fsdp" plugins
try 0 "also called fsdp ({stage: FULL_SHARD}): " plugins strategy-zero
try 0 "strategy-zero: data parallel" plugins strategy-ddp
try 0 '"preset": "{stage: FULL_SHARD}"' plugins strategy-zero --json
try 2 "there is no plugin 'strategy-ddpp': did you mean 'strategy-ddp'?" plugins strategy-ddpp
try 2 "there is no plugin 'optim-adam': did you mean 'optim-adamw'?" plugins optim-adam
try 2 "one plugin at a time: 'two' is too many" plugins one two
try 2 "there is no option --all" plugins --all

# What is printed is the result: a full disk that swallows it is a failure.
if [ -c /dev/full ]; then
    for words in "help" "help train" "plugins" "plugins optim-adamw --json"; do
        out=$("$heddle" $words 2>&1 >/dev/full)
        [ $? -eq 1 ] || { echo "heddle $words >/dev/full: not exit 1" >&2; exit 1; }
        case $out in *"could not be written: "*) ;; *) echo "heddle $words >/dev/full: $out" >&2; exit 1 ;; esac
    done
fi

export HEDDLE_PLUGIN_PATH="$faulty"
try 0 "wrong magic" plugins
try 1 "wrong magic" plugins optim-magic
try 1 "usable: no: " plugins optim-probe
try 1 '"usable": false' plugins optim-probe --json
try 0 '"reason": "plugin optim-probe cannot be used on this machine: no unicorn in slot 7"' plugins --json

export HEDDLE_PLUGIN_PATH=/no/such/folder
try 2 "HEDDLE_PLUGIN_PATH: '/no/such/folder' is not a folder" plugins
