# The commands that matter, for https://just.systems. Each is one or two lines of meson, ninja or git: run them by hand where
# there is no just. `BUILD=folder just build` uses another build folder than build/.

build_dir := env_var_or_default("BUILD", "build")
plugins := "s/^(heddle|plugins\\/[^:]*\\.so): .*/\\1/p"

# List the recipes.
default:
    @just --list

# Configure once.
setup *options:
    [ -e {{build_dir}}/build.ninja ] || meson setup {{build_dir}} {{options}}

# The command and the plugins, without the test suites.
build: setup
    ninja -C {{build_dir}} $(ninja -C {{build_dir}} -t targets all | sed -nE '{{plugins}}')

# Everything, and every suite: minutes. Options go to `meson test`.
test *options: setup
    ninja -C {{build_dir}}
    CK_TIMEOUT_MULTIPLIER=5 meson test -C {{build_dir}} --no-rebuild --print-errorlogs {{options}}

# The suites of one room (`just suite program`); `meson test -C build --list` has the names.
suite name *options: setup
    CK_TIMEOUT_MULTIPLIER=5 meson test -C {{build_dir}} --print-errorlogs --suite {{name}} {{options}}

# Single tests by name (`just one verify schedule`); builds what they need and no more.
one +names: setup
    CK_TIMEOUT_MULTIPLIER=5 meson test -C {{build_dir}} --print-errorlogs {{names}}

# Tests under AddressSanitizer with UndefinedBehaviorSanitizer (`just asan verify`), or all of them.
asan *names:
    [ -e {{build_dir}}-asan/build.ninja ] || meson setup {{build_dir}}-asan -Db_sanitize=address,undefined -Db_lundef=false
    ASAN_OPTIONS=fast_unwind_on_malloc=0:detect_leaks=1:intercept_tls_get_addr=0 \
        LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp:print_suppressions=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        CK_TIMEOUT_MULTIPLIER=40 meson test -C {{build_dir}}-asan --print-errorlogs --timeout-multiplier 10 {{names}}

# The same under ThreadSanitizer.
tsan *names:
    [ -e {{build_dir}}-tsan/build.ninja ] || meson setup {{build_dir}}-tsan -Db_sanitize=thread -Db_lundef=false
    TSAN_OPTIONS=suppressions=$PWD/tools/tsan.supp:halt_on_error=1:die_after_fork=0:intercept_memmem=0 \
        UCX_MEM_EVENTS=n OMPI_MCA_opal_common_ucx_opal_mem_hooks=0 \
        CK_TIMEOUT_MULTIPLIER=40 meson test -C {{build_dir}}-tsan --print-errorlogs --timeout-multiplier 20 {{names}}

# Format the C files that differ from HEAD.
format:
    git diff --name-only --diff-filter=d HEAD -- '*.c' '*.h' '*.cu' '*.cuh' | xargs -r clang-format -i

# clang-tidy over core/, or over the files given; .clang-tidy has the checks.
lint *files: setup
    tools/lint {{build_dir}} {{files}}

# Names, links, options and keys in the pages; figures in them, printed anew; the order of the rooms.
docs: build
    python3 tests/docs/names.py {{build_dir}}/heddle
    python3 tests/docs/figures.py {{build_dir}}/heddle
    tools/arrows . {{build_dir}}
