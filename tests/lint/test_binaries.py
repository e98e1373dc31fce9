"""What is built: exported names, libraries needed, hardening, one ABI for all Pythons."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tree import BUILD, ROOT, TreeTest, installed, output, tracked

LIBRARY = BUILD / "src" / "libhvd.so"
CORE = installed("_core.abi3.so")
OPS = installed("tensorflow/_ops.so")
RUN = installed("horovodrun")
LIBC = re.compile(r"^(linux-vdso|ld-linux[\w-]*|libc|libm|libpthread|libdl|librt)\.so")

# Compiled against libhvd as a user would: not with our flags, not from our tree.
USER_PROGRAM = """
#include <horovod/driver.h>
#include <horovod/horovod.h>
#include <stdio.h>
int main(void)
{
    struct hvd_error err = {0};
    float x = 2;
    struct hvd_request sum = {.size = sizeof sum, .op = HVD_ALLREDUCE, .dtype = HVD_F32,
                              .reduce = HVD_SUM, .device = -1, .name = "x", .input = &x,
                              .output = &x, .ndim = 1, .shape = {1}};
    if (hvd_init(NULL, &err) != HVD_OK || hvd_run(&sum, &err) != HVD_OK)
        return fprintf(stderr, "%s\\n", err.text), 1;
    printf("%s %d %.1f\\n", hvd_version(), hvd_size(), x);
    hvd_shutdown();
    return 0;
}
"""


def exported(path):
    return {row.split()[-1].split("@")[0] for row in
            output("nm", "-D", "--defined-only", path).splitlines()}


def declared():
    """The functions of the public headers."""
    text = "\n".join(p.read_text() for p in tracked("include/*.h"))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return set(re.findall(r"\b(hvd_\w+)\s*\(", text)) - {"hvd_where_fn"}


class Exports(TreeTest):
    def test_libhvd_exports_the_public_headers_and_nothing_else(self):
        self.assertEqual(exported(LIBRARY), declared())

    def test_no_public_name_has_gone(self):
        """Taking a name away breaks programs; the list changes on purpose only."""
        known = set((ROOT / "tests/lint/libhvd.symbols").read_text().split())
        self.assertEqual(declared(), known)

    def test_core_exports_its_module_and_the_ctypes_names(self):
        names = exported(CORE)
        self.assertIn("PyInit__core", names)
        self.assert_none(sorted(n for n in names - {"PyInit__core"}
                                if not n.startswith("horovod_")), "exported by _core")

    def test_the_op_library_exports_what_python_calls(self):
        self.assertEqual(exported(OPS), {"horovod_tensorflow_use", "horovod_tensorflow_block"})

    def test_core_has_what_it_calls(self):
        """The loader would notice, but only on the user's machine."""
        missing = output("nm", "-D", "--undefined-only", CORE).split()
        self.assert_none([n for n in missing if n.startswith("hvd_")], "undefined in _core")


class Needs(TreeTest):
    def test_nothing_but_libc_at_run_time(self):
        for path in (LIBRARY, CORE, OPS, RUN):
            with self.subTest(path=path.name):
                self.assertTrue(path.exists(), f"{path} is not there")
                needed = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", path))
                self.assert_none([n for n in needed if not LIBC.match(n)], "needs")
                self.assert_none(re.findall(r"R(?:UN)?PATH.*",
                                            output("readelf", "-dW", path)), "run path")

    def test_one_abi_for_every_python(self):
        result = subprocess.run([sys.executable, "-m", "abi3audit", "--strict",
                                 "--assume-minimum-abi3", "3.10", CORE],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class Hardening(TreeTest):
    def test_hardening(self):
        for path in (LIBRARY, CORE, OPS, RUN):
            with self.subTest(path=path.name):
                self.assertTrue(path.exists(), f"{path} is not there")
                segments = output("readelf", "-lW", path)
                dynamic = output("readelf", "-dW", path)
                names = output("nm", "-D", "--undefined-only", path)
                self.assertIn("GNU_RELRO", segments)
                self.assertRegex(dynamic, r"BIND_NOW|FLAGS.*NOW")
                self.assertRegex(segments, r"GNU_STACK\s.*\sRW\s")
                self.assertNotRegex(segments, r"LOAD\s.*\sRWE\s")
                self.assertNotIn("TEXTREL", dynamic)
                self.assertIn("__stack_chk_fail", names)
                self.assertRegex(names, r"__\w+_chk\b")
                self.assertIn("DYN (", output("readelf", "-hW", path))


class ForPlainC(TreeTest):
    def test_an_installed_library_serves_a_user_program(self):
        with tempfile.TemporaryDirectory() as name:
            place = pathlib.Path(name)
            output(pathlib.Path(sys.executable).parent / "meson", "install", "-C", BUILD,
                   "--no-rebuild", "--quiet", "--tags", "devel", "--destdir", place)
            config = next(place.rglob("horovod.pc"))
            self.assertTrue(list(place.rglob("include/horovod/driver.h")))
            (place / "user.c").write_text(USER_PROGRAM)
            environment = {**os.environ, "PKG_CONFIG_PATH": str(config.parent),
                           "PKG_CONFIG_SYSROOT_DIR": str(place)}
            flags = subprocess.run(["pkg-config", "--cflags", "--libs", "horovod"],
                                   env=environment, check=True, capture_output=True,
                                   text=True).stdout.split()
            program = place / "user"
            output("gcc", "-Wall", "-Werror", place / "user.c", "-o", program, *flags)
            library = next(place.rglob("libhvd.so")).parent
            result = subprocess.run([program], capture_output=True, text=True, timeout=60,
                                    env={"LD_LIBRARY_PATH": str(library)})
            self.assertEqual(result.stderr, "")
            self.assertRegex(result.stdout, r"^\d+\.\d+\.\d+ 1 2\.0\n$")
