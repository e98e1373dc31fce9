#!/usr/bin/env bash
# Builds the wheel that needs no compiler: dist/horovod-*-cp310-abi3-manylinux_2_28_*.whl.
#
#   tools/wheel.sh              builds it and checks it
#   tools/wheel.sh try          and tries it with every CPython from 3.10 on that is here
#
# 1. zig's C compiler (a package of PyPI) links against the symbols of glibc 2.28, whatever
#    this machine has; so the wheel runs on Debian 10, RHEL 8, Ubuntu 20.04 and newer.
# 2. libcrypto, libuv and libyaml are this machine's static archives, hidden in our files.
# 3. auditwheel must find nothing newer than the tag, abi3audit nothing outside the limited
#    API of CPython 3.10; then the tag of the interpreter that built it is put right.
set -euo pipefail
cd "$(dirname "$0")/.."

glibc=2.28
work=$PWD/build/manylinux
log=$PWD/build/log
machine=$(uname -m)
tag=manylinux_${glibc/./_}_$machine

say() { printf 'wheel: %s\n' "$*"; }
die() { printf 'wheel: %s\n' "$*" >&2; exit 1; }

quietly() {                             # FILE COMMAND...
    mkdir -p "$log"
    if ! "${@:2}" >"$log/$1" 2>&1; then
        tail -n 40 "$log/$1" >&2
        die "failed: ${*:2:4} ...; all of its output is in build/log/$1"
    fi
}

tools() {
    local file=tools/requirements-wheel.txt

    if ! cmp -s "$file" "$work/tools/requirements"; then
        say "tools of $file"
        rm -rf "$work/tools"
        "${PYTHON:-python3}" -m venv "$work/tools"
        quietly pip-wheel.log "$work/tools/bin/python" -m pip install -r "$file"
        cp "$file" "$work/tools/requirements"
    fi
    export PATH="$work/tools/bin:$PATH"
}

# zig looks into no directory of this machine by itself.  Meson asks for the linker's name
# and for predefined macros in ways that zig answers otherwise than other compilers.
compiler() {
    mkdir -p "$work/bin"
    cat >"$work/bin/cc" <<END
#!/bin/sh
case " \$* " in
    *" -Wl,--version "*) echo "GNU ld (zig)"; exit 0 ;;
    *" -dM "*) exec "$work/tools/bin/python" -m ziglang cc -target $machine-linux-gnu "\$@" ;;
esac
exec "$work/tools/bin/python" -m ziglang cc -target $machine-linux-gnu.$glibc "\$@"
END
    cat >"$work/bin/ar" <<END
#!/bin/sh
exec "$work/tools/bin/python" -m ziglang ar "\$@"
END
    chmod +x "$work/bin/cc" "$work/bin/ar"
}

# library NAME ARCHIVE LIBS: a pkg-config file of the static archive alone.
library() {
    local archive

    archive=$(gcc -print-file-name="$2")
    [ -e "$archive" ] || die "no $2: run tools/setup.sh demo"
    ln -sf "$(readlink -f "$archive")" "$work/lib/lib${1#lib}.a"
    cat >"$work/pkgconfig/$3.pc" <<END
Name: $1
Description: the static archive
Version: $(pkg-config --modversion "$3")
Cflags: -I$work/include
Libs: -L$work/lib -l${1#lib}
END
}

libraries() {
    local name

    rm -rf "$work/include" "$work/lib" "$work/pkgconfig"
    mkdir -p "$work/include/openssl" "$work/lib" "$work/pkgconfig"
    ln -s /usr/include/openssl/* "/usr/include/$(gcc -print-multiarch)"/openssl/* \
        "$work/include/openssl/"
    for name in uv uv.h yaml.h; do
        ln -s "/usr/include/$name" "$work/include/$name"
    done
    library crypto libcrypto.a libcrypto
    library uv libuv_a.a libuv
    library yaml libyaml.a yaml-0.1
}

build() {
    rm -rf "$work/raw" "$work/build"
    mkdir -p "$work/raw" dist
    say "build, for glibc $glibc"
    PATH="$work/bin:$PATH" CC="$work/bin/cc" AR="$work/bin/ar" \
        PKG_CONFIG_LIBDIR="$work/pkgconfig" ZIG_GLOBAL_CACHE_DIR="$work/cache" \
        ZIG_LOCAL_CACHE_DIR="$work/cache" \
        quietly wheel.log python -m pip wheel --no-build-isolation --no-deps \
        --config-settings=build-dir="$work/build" --config-settings=setup-args=-Db_pie=true \
        --config-settings=setup-args=-Dc_link_args=-s --wheel-dir "$work/raw" .
}

check() {
    local found

    found=$(auditwheel show "$work"/raw/*.whl 2>&1 | grep -oE '"manylinux_2_[0-9]+_' |
        head -n 1 | grep -oE '[0-9]+_$' | tr -d _)
    say "auditwheel: runs with glibc 2.$found"
    [ "2.$found" = "$glibc" ] || [ "$found" -lt "${glibc#2.}" ] ||
        die "a symbol is newer than glibc $glibc: auditwheel show $work/raw/*.whl"
    quietly abi3audit.log abi3audit --strict --assume-minimum-abi3 3.10 "$work"/raw/*.whl
    say "abi3audit: nothing newer than CPython 3.10"
}

finish() {
    rm -f dist/*.whl
    python -m wheel tags --remove --python-tag cp310 --abi-tag abi3 --platform-tag "$tag" \
        "$work"/raw/*.whl >/dev/null
    mv "$work"/raw/*.whl dist/
    wheel=$(ls "$PWD"/dist/*.whl)
    say "dist/$(basename "$wheel"), $(du -k "$wheel" | cut -f 1) KiB"
}

# ---- Trying it ----------------------------------------------------------------------------

interpreters() {
    local path

    for path in $(compgen -c python3. | grep -xE 'python3\.1[0-9]' | sort -uV) \
        ~/.pyenv/versions/3.1*/bin/python3; do
        path=$(command -v "$path") && "$path" -c 'import ensurepip, venv' 2>/dev/null || continue
        "$path" -c 'import sys; print("%d.%02d" % sys.version_info[:2], sys.executable)'
    done | sort -u -k 1,1 | cut -d ' ' -f 2
}

# As root the compiler and the headers of this machine are hidden; pip takes wheels only.
without_compiler() {
    if [ "$(id -u)" -eq 0 ]; then
        unshare --mount sh -ec 'mount -t tmpfs tmpfs /usr/include
            mount -t tmpfs tmpfs /usr/lib/gcc; exec "$@"' without_compiler "$@"
    else
        "$@"
    fi
}

job='
import horovod.numpy as hvd, numpy as np
hvd.init()
for dtype in (np.float32, np.float16, np.int64):
    x = np.full(100000, hvd.rank() + 1, dtype)
    assert (hvd.allreduce(x, op=hvd.Sum) == hvd.size() * (hvd.size() + 1) // 2).all()
print("rank", hvd.rank(), "of", hvd.size())
'

try_with() {                            # INTERPRETER
    local start=$SECONDS here=$work/try

    rm -rf "$here"
    "$1" -m venv "$here"
    quietly try-install.log without_compiler "$here/bin/python" -m pip install \
        --only-binary :all: "$wheel" numpy
    PATH="$here/bin:/usr/bin:/bin" quietly try-run.log without_compiler "$here/bin/horovodrun" \
        -np 3 "$here/bin/python" -c "$job"
    [ "$(grep -c 'rank . of 3' "$log/try-run.log")" -eq 3 ] || die "see build/log/try-run.log"
    say "$("$1" --version): installed and ran a job, $((SECONDS - start)) s"
    rm -rf "$here"
}

try() {
    local interpreter

    for interpreter in $(interpreters); do
        try_with "$interpreter"
    done
}

tools
compiler
libraries
build
check
finish
case "${1:-}" in
    try) try ;;
    '') ;;
    *) die "usage: tools/wheel.sh [try]" ;;
esac
