"""Every header compiles alone, with both compilers; the public ones in C++, too."""
import concurrent.futures
import os
import subprocess

from tree import ROOT, TreeTest, tracked

FLAGS = ["-fsyntax-only", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow",
         "-Wno-unused-parameter", "-Werror", "-Iinclude", "-Isrc", "-Itests"]


def compile_alone(compiler, language, header):
    # Through another file: a header given as the main file may not use #pragma once, and
    # its unused inline functions count.
    text = f'#include "{header}"\n'
    return subprocess.run([compiler, "-x", language, *FLAGS, "-"], cwd=ROOT, input=text,
                          capture_output=True, text=True)


class Headers(TreeTest):
    def compile_all(self, compiler, language, headers):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = pool.map(lambda h: compile_alone(compiler, language, h), headers)
            self.assert_none([r.stderr for r in results if r.returncode != 0],
                             f"does not compile alone with {compiler}")

    def test_every_header_compiles_alone(self):
        headers = [p.relative_to(ROOT) for p in tracked("src/*.h", "include/*.h",
                                                        "tests/*.h")
                   if p.parent.name != "python"]
        self.assertGreater(len(headers), 10)
        self.compile_all("gcc", "c", headers)
        self.compile_all("clang", "c", headers)

    def test_public_headers_are_for_cxx_as_well(self):
        headers = [p.relative_to(ROOT) for p in tracked("include/*.h")]
        self.compile_all("clang", "c++", headers)
