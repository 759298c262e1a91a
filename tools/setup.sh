# Shared by ./quickstart and ./run-tests; sourced, with the working directory at the top of the tree.
#   install_packages NEEDED WANTED   what the build needs, and these two lists; apt only for what is missing
#   build_heddle FOLDER [OPTION...]   meson setup (once) and ninja
#   build_command_and_plugins FOLDER [OPTION...]   no tests, no device-cuda
# All may run any number of times.

# Without these there is no build.
required_packages='gcc libc6-dev meson ninja-build pkg-config libyaml-dev libjansson-dev libxxhash-dev libssl-dev
                   check libsubunit-dev'
# Without these a plugin is left out or slower; `build/heddle plugins` says so.
optional_packages='libdnnl-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev zlib1g-dev libzstd-dev libfabric-dev
                   libopenmpi-dev openmpi-bin libhwloc-dev libcurl4-openssl-dev libexpat1-dev libmicrohttpd-dev'

installed_something=no

say() { printf '%s\n' "$*" >&2; }

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

missing_of() {
    local name
    for name in "$@"; do
        is_installed "$name" || printf '%s ' "$name"
    done
}

# apt as root, directly or through sudo; fails quietly where neither is possible.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        env DEBIAN_FRONTEND=noninteractive "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
    elif command -v sudo >/dev/null && [ -t 0 ]; then
        sudo env DEBIAN_FRONTEND=noninteractive "$@"
    else
        return 1
    fi
}

apt_install() { as_root apt-get install -y --no-install-recommends "$@" >&2; }

install_packages() {
    local needed wanted name
    if ! command -v dpkg-query >/dev/null; then
        say "setup: no dpkg here: install by hand the likes of" $required_packages $1 "($optional_packages $2)"
        return 0
    fi
    needed=$(missing_of $required_packages $1)
    wanted=$(missing_of $optional_packages $2)
    [ -n "$needed$wanted" ] || return 0
    say "setup: installing $needed$wanted"
    if ! as_root apt-get update -q >&2; then
        [ -z "$needed" ] && return 0
        say "setup: cannot run apt-get as root; please install: $needed"
        return 1
    fi
    installed_something=yes
    apt_install $needed $wanted && return 0
    # Not all at once: another release may lack one that is only wanted.
    [ -z "$needed" ] || apt_install $needed || { say "setup: apt-get could not install: $needed"; return 1; }
    for name in $wanted; do
        apt_install "$name" || say "setup: going on without $name"
    done
}

# Is there a meson.build younger than the build? ninja does not see one in a folder that is new.
new_descriptions() { find . -name 'build*' -prune -o -name meson.build -newer "$1/build.ninja" -print; }

configure_heddle() {
    local folder=$1
    shift
    if [ ! -e "$folder/build.ninja" ]; then
        meson setup "$folder" "$@" >&2
    elif [ "$installed_something" = yes ] || [ -n "$(new_descriptions "$folder")" ]; then
        meson setup --reconfigure "$folder" "$@" >&2
    fi
}

build_heddle() { configure_heddle "$@" && ninja -C "$1" >&2; }

# Without the tests, which are half of the rest, and without the kernels for GPUs, over which nvcc sits longer than gcc over all that.
build_command_and_plugins() {
    configure_heddle "$@" &&
        ninja -C "$1" $(ninja -C "$1" -t targets all |
            sed -nE '/heddle-device-cuda\.so:/d; s/^(heddle|plugins\/[^:\/]*\/heddle-[^:\/]*\.so): .*/\1/p') >&2
}
