#!/usr/bin/env bash
# Makes a machine ready: system packages (tools/needs.txt), .venv, pinned Python packages
# (tools/requirements-*.txt), our package built and installed.  A step whose inputs are
# unchanged is skipped, so that a second run takes a second.
#
#   tools/setup.sh demo      a compiler, PyTorch and us
#   tools/setup.sh           and what the tests need
#   tools/setup.sh bench     and what only the benchmarks need
#   tools/setup.sh long      and what only the long tests need
#   tools/setup.sh build     what a build needs of the system, nothing else
#   tools/setup.sh docs      what building the pages needs, nothing else
#   tools/setup.sh fresh     what building a bare root needs, nothing else
#   tools/setup.sh check     installs nothing; names what the tests miss, exit code 1
#
# PYTHON=python3.12 chooses another interpreter (3.10 or newer).  What apt, pip and the
# compiler say lies in build/log, and is shown when they fail.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"     # where sshd and nft are; not in every user's PATH

python=${PYTHON:-python3}
venv=$PWD/.venv
log=$PWD/build/log

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# quietly FILE COMMAND...: its output goes to build/log/FILE and is shown if it fails.
quietly() {
    mkdir -p "$log"
    if ! "${@:2}" >"$log/$1" 2>&1; then
        tail -n 60 "$log/$1" >&2
        die "failed: ${*:2:4} ...; all of its output is in build/log/$1"
    fi
}

# ---- System packages ----------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1; }
python_can() {
    case $1 in
        interpreter) have "$python" ;;
        venv) "$python" -c 'import ensurepip, venv' 2>/dev/null ;;
        headers) "$python" -c 'import os, sysconfig as s, sys
sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' 2>/dev/null ;;
    esac
}

# is_there KIND NAME, as tools/needs.txt has them
is_there() {
    case $1 in
        program) have "$2" ;;
        file) [ -e "$2" ] ;;
        library) pkg-config --exists "$2" 2>/dev/null ;;
        clang) have clang && [ -e "$(clang -print-file-name="libclang_rt.$2-$(uname -m).a")" ] ;;
        python) python_can "$2" ;;
        *) die "tools/needs.txt: '$1' is no kind" ;;
    esac
}

# missing LEVEL...: a line "package kind name" for everything that is not there.
missing() {
    local level kind name package

    while read -r level kind name package; do
        case " $* " in *" $level "*) ;; *) continue ;; esac
        is_there "$kind" "$name" || printf '%s %s %s\n' "$package" "$kind" "$name"
    done < <(sed -e 's/#.*//' -e '/^ *$/d' tools/needs.txt)
}

missing_packages() { missing "$@" | cut -d ' ' -f 1 | sort -u | tr '\n' ' '; }

install_packages() {
    local packages=$1 root=()

    [ "$(id -u)" -eq 0 ] || root=(sudo)
    if ! have apt-get || { [ ${#root[@]} -gt 0 ] && ! sudo -n true 2>/dev/null; }; then
        die "missing system packages; as root: apt-get install -y $packages"
    fi
    say "system packages:" $packages
    quietly apt-update.log "${root[@]}" apt-get update -qq
    # shellcheck disable=SC2086  # a list of names
    quietly apt-install.log "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $packages
}

system_packages() {
    local packages

    packages=$(missing_packages "$@")
    if [ -z "$packages" ]; then
        say "system packages: all there"
        return
    fi
    install_packages "$packages"
    packages=$(missing_packages "$@")
    [ -z "$packages" ] || die "still missing after the installation: $packages"
}

# ---- Python -------------------------------------------------------------------------------

# stamp NAME FILE...: true if these files are the ones of the last done NAME.
fingerprint() { { "$venv/bin/python" --version; sha256sum "$@"; } | sha256sum; }
is_done() { [ "$(cat "$venv/.stamp-$1" 2>/dev/null)" = "$(fingerprint "${@:2}")" ]; }
mark_done() { fingerprint "${@:2}" >"$venv/.stamp-$1"; }

virtual_environment() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "$python is older than 3.10; choose another one with PYTHON=..."
    if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c pass 2>/dev/null; then
        say ".venv: new, $("$python" --version)"
        rm -rf "$venv"
        "$python" -m venv "$venv"
    fi
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# What building and running the demo needs.  torch, the largest by far, is fetched while we
# are built; nothing is compiled that the demo does not import.
demo_packages() {
    local file=tools/requirements-demo.txt torch fetch

    if is_done packages-demo "$file"; then
        say "Python packages of $file: unchanged"
        our_package
        return
    fi
    torch=$(grep '^torch==' "$file")
    say "Python packages: build tools, numpy"
    # shellcheck disable=SC2046  # a word per package
    quietly pip-demo.log pip install --no-compile $(grep -v -e '^#' -e '^torch==' "$file")
    say "Python packages: $torch, in the background"
    quietly pip-torch.log pip install --no-compile "$torch" &
    fetch=$!
    our_package
    wait "$fetch" || exit 1
    mark_done packages-demo "$file"
}

# python_packages LEVEL: what tools/requirements-LEVEL.txt lists.
python_packages() {
    local file=tools/requirements-$1.txt

    if is_done "packages-$1" "$file"; then
        say "Python packages of $file: unchanged"
        return
    fi
    say "Python packages of $file"
    quietly "pip-$1.log" pip install -r "$file"
    mark_done "packages-$1" "$file"
}

# Tests start many processes that write no bytecode: each would compile what it imports.
compile_packages() {
    if ! is_done compiled tools/requirements-*.txt; then
        # Some packages carry files for other versions of Python.
        "$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >"$log/compile.log" 2>&1 || true
        mark_done compiled tools/requirements-*.txt
    fi
}

our_sources() {
    find meson.build meson.options pyproject.toml LICENSE README.md src include python \
        -type f ! -path '*/__pycache__/*' | LC_ALL=C sort
}

our_package() {
    local sources

    mapfile -t sources < <(our_sources)
    if is_done horovod "${sources[@]}"; then
        say "horovod: unchanged"
        return
    fi
    say "horovod: build and install into .venv"
    # The programs of .venv (meson, ninja) come first, whatever PATH says.
    PATH="$venv/bin:$PATH" quietly install.log "$venv/bin/python" -m pip install \
        --no-build-isolation --no-deps --force-reinstall \
        --config-settings=build-dir=build/wheel .
    mark_done horovod "${sources[@]}"
}

# ---- What was asked for -------------------------------------------------------------------

check() {
    local rows

    rows=$(missing demo test)
    [ -n "$rows" ] || return 0
    while read -r package kind name; do
        printf 'setup: no %s %s; it comes with the Debian package %s\n' "$kind" "$name" \
            "$package" >&2
    done <<<"$rows"
    die "run tools/setup.sh, or as root: apt-get install $(missing_packages demo test)"
}

ready() {                               # levels of the system's packages ...
    system_packages "$@"
    virtual_environment
    demo_packages
    if [ $# -gt 1 ]; then
        python_packages test
        python_packages docs
        compile_packages
    fi
    case " $* " in *" bench "*) python_packages bench ;; esac
    say "ready: . .venv/bin/activate"
}

pages() {
    virtual_environment
    python_packages docs
}

case "$*" in
    demo) ready demo ;;
    '') ready demo test ;;
    bench | long) ready demo test "$1" ;;
    build) system_packages demo ;;
    docs) pages ;;
    fresh) system_packages fresh ;;
    check) check ;;
    *) die "usage: tools/setup.sh [demo | bench | long | build | docs | fresh | check]" ;;
esac
