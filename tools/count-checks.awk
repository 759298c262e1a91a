# Reads meson-logs/testlog.txt of one or more runs; prints "PASSED FAILED".
# Check prints "100%: Checks: 4, Failures: 0, Errors: 0" for each suite. A program that ended badly without a failed
# check (a crash, a time-out, a sanitizer's report at exit) counts as one failure; one that is no Check suite counts as one.
function finish() {
    if (!open)
        return
    if (result ~ /^exit status 77/)
        return
    bad = result !~ /^exit status 0/
    if (bad && !section_failed)
        failed++
    else if (!bad && !section_checks)
        passed++
}
/^=+ [0-9]+\/[0-9]+ =+$/ { finish(); open = 1; result = ""; section_failed = section_checks = 0 }
/^result: / { result = $0; sub(/^result: +/, "", result) }
/^[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/ {
    line = $0
    gsub(/[^0-9 ]/, "", line)
    split(line, n, " ")
    passed += n[2] - n[3] - n[4]
    failed += n[3] + n[4]
    section_failed += n[3] + n[4]
    section_checks += n[2]
}
END { finish(); print passed + 0, failed + 0 }
