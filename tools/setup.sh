#!/usr/bin/env bash
# Makes a machine ready for `make demo` and `make test`: system packages, .venv, pinned
# Python packages, our package built and installed.  A step whose inputs are unchanged is
# skipped, so that a second run takes a second.
#
#   tools/setup.sh           all of it
#   tools/setup.sh bench     and what only the benchmarks need
#   tools/setup.sh long      and what only the long tests need
#
# PYTHON=python3.12 chooses another interpreter (3.10 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=$PWD/.venv

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
library() { pkg-config --exists "$1" 2>/dev/null; }
clang_runtime() { [ -e "$(clang -print-file-name="libclang_rt.$1-$(uname -m).a")" ]; }

# A Python that can make a virtual environment and compile an extension.
python_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
python_headers() {
    "$python" -c 'import os, sysconfig as s, sys
sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' 2>/dev/null
}

# What must work, and the Debian package that brings it.
missing_packages() {
    have gcc || echo gcc
    have make || echo make
    have git || echo git
    have nm || echo binutils
    have clang || echo clang
    { have clang && clang_runtime fuzzer; } || echo libclang-rt-14-dev
    have llvm-symbolizer || echo llvm
    have pkg-config || echo pkg-config
    [ -e /usr/include/stdlib.h ] || echo libc6-dev
    library libcrypto || echo libssl-dev
    library libuv || echo libuv1-dev
    library yaml-0.1 || echo libyaml-dev
    have ssh || echo openssh-client
    [ -x /usr/sbin/sshd ] || have sshd || echo openssh-server
    have mpirun.openmpi || echo openmpi-bin
    have mpirun.mpich || echo mpich
    have unshare || echo util-linux
    have ip || echo iproute2
    have ps || echo procps
    have "$python" || echo python3
    python_venv || echo python3-venv
    python_headers || echo python3-dev
}

install_packages() {
    local packages=$1 root=()

    [ "$(id -u)" -eq 0 ] || root=(sudo)
    if ! have apt-get || { [ ${#root[@]} -gt 0 ] && ! sudo -n true 2>/dev/null; }; then
        die "missing system packages; as root: apt-get install -y $packages"
    fi
    say "system packages:" $packages
    "${root[@]}" apt-get update -qq
    # shellcheck disable=SC2086  # a list of names
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $packages >/dev/null
}

system_packages() {
    local packages

    packages=$(missing_packages | sort -u | tr '\n' ' ')
    if [ -z "$packages" ]; then
        say "system packages: all there"
        return
    fi
    install_packages "$packages"
    packages=$(missing_packages | sort -u | tr '\n' ' ')
    [ -z "$packages" ] || die "still missing after the installation: $packages"
}

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

python_packages() {
    local file=tools/requirements.txt

    if is_done packages "$file"; then
        say "Python packages of $file: unchanged"
        return
    fi
    say "Python packages: $(grep '^torch==' "$file") first, alone"
    "$venv/bin/python" -m pip install -q "$(grep '^torch==' "$file")"
    say "Python packages of $file (some minutes the first time)"
    "$venv/bin/python" -m pip install -q -r "$file"
    mark_done packages "$file"
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
    mkdir -p build/log
    # The programs of .venv (meson, ninja) come first, whatever PATH says.
    if ! PATH="$venv/bin:$PATH" "$venv/bin/python" -m pip install --no-build-isolation \
        --no-deps --force-reinstall --config-settings=build-dir=build/wheel . \
        >build/log/install.log 2>&1
    then
        tail -n 60 build/log/install.log >&2
        die "the build failed; all of it is in build/log/install.log"
    fi
    mark_done horovod "${sources[@]}"
}

case "$*" in ''|bench|long) ;; *) die "usage: tools/setup.sh [bench | long]" ;; esac
system_packages
virtual_environment
python_packages
if [ "${1:-}" = bench ]; then
    have mpicc.openmpi || install_packages libopenmpi-dev
    have mpicc.mpich || install_packages libmpich-dev
fi
if [ "${1:-}" = long ]; then
    have spin || install_packages spin
    have qemu-aarch64 || install_packages qemu-user
    have aarch64-linux-gnu-gcc ||
        install_packages "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
fi
our_package
say "ready: . .venv/bin/activate"
