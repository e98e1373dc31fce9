#!/usr/bin/env bash
# Builds a minimal Debian root, clones what is committed into it, and runs `make demo` and
# `make test` there, as a newcomer does.  Whatever this machine has by chance does not count:
# the root gets only its package sources, pip's configuration and the CA bundle.
#
#   tools/fresh.sh [TARGET...]      other targets of the Makefile than demo and test
#
# Needs root and mmdebstrap.  Everything happens in mount, process, IPC and host name
# namespaces of its own (the network is this machine's: packages come through it); the root
# lies in a temporary directory and is gone afterwards.  KEEP=1 keeps build/log of the root
# in build/log/fresh.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'fresh: %s\n' "$*"; }
die() { printf 'fresh: %s\n' "$*" >&2; exit 1; }

# Directories that pip's configuration names on this machine: indexes and wheels that lie here.
pip_directories() {
    { python3 -m pip config list 2>/dev/null || true; env | grep '^PIP_' || true; } |
        grep -oE "(file://)?/[^ '\"]+" | sed -e 's|^file://||' -e 's|/simple/*$||' | sort -u
}

ca_bundle() { printf '%s\n' "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"; }

make_root() {
    local suite

    # shellcheck disable=SC1091
    suite=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")
    say "Debian $suite, minbase"
    mmdebstrap --quiet --variant=minbase --include=make,git,ca-certificates \
        --aptopt='Acquire::Languages "none"' "$suite" "$root" /etc/apt/sources.list.d/*.sources \
        >"$root.log" 2>&1 ||
        { tail -n 30 "$root.log" >&2; die "mmdebstrap failed"; }
}

take_over() {                           # what reaching the package indexes needs
    local path

    cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    for path in "$(ca_bundle)" /etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf; do
        [ -f "$path" ] || continue
        mkdir -p "$root$(dirname "$path")"
        cp -L "$path" "$root$path"
    done
    git clone --quiet --no-hardlinks . "$root/opt/horovod"
}

# In the namespaces: mounts, then the targets.
enter() {
    local path

    # A mount of its own: unshare and ip netns change what "/" hands on, and must find one there.
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/run"
    while read -r path; do
        [ -d "$path" ] || continue
        mkdir -p "$root$path"
        mount --bind -o ro "$path" "$root$path"
    done < <(pip_directories)
    hostname fresh
    printf '127.0.0.1 fresh\n' >>"$root/etc/hosts"
    # shellcheck disable=SC2046  # a word per variable
    exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        $(env | grep -E '^(PIP_|SSL_CERT_|[A-Za-z]+_proxy=|REQUESTS_CA_BUNDLE=)' || true) \
        bash -ec 'cd /opt/horovod; for target; do make "$target"; done' fresh "$@"
}

remove() {
    if [ -n "${KEEP:-}" ] && [ -d "$root/opt/horovod/build/log" ]; then
        rm -rf build/log/fresh
        mkdir -p build/log
        cp -r "$root/opt/horovod/build/log" build/log/fresh
    fi
    rm -rf --one-file-system "$root" "$root.log"
}

if [ "${1:-}" = --inside ]; then        # the second half, see below
    root=$2
    enter "${@:3}"
fi
[ "$(id -u)" -eq 0 ] || die "a bare root is made as root"
command -v mmdebstrap >/dev/null || die "no mmdebstrap: apt-get install mmdebstrap"
[ -z "$(git status --porcelain)" ] || say "only what is committed is tried"
root=$(mktemp -d "${TMPDIR:-/tmp}/fresh.XXXXXX")
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
[ $# -gt 0 ] || set -- demo test
make_root
take_over
start=$SECONDS
for target; do
    begin=$SECONDS
    unshare --mount --pid --ipc --uts --fork --kill-child \
        tools/fresh.sh --inside "$root" "$target" || die "make $target failed in a bare root"
    say "make $target: $((SECONDS - begin)) s"
done
say "all of it: $((SECONDS - start)) s"
