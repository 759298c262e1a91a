# Shared by the scripts here, which source it. $work is a folder for what they write; it goes when they end.
#   verdict OK WHAT   OK is 0 where WHAT holds
#   finish            how many held, as Check says it; fails where one did not
# shellcheck shell=bash
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

verdict() {
    if [ "$1" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "failed: $2"; fi
}

finish() {
    echo "100%: Checks: $((passed + failed)), Failures: $failed, Errors: 0"
    [ "$failed" = 0 ]
}
