"""Rules for the text of the sources, and that every file is part of the build."""
import collections
import re

from tree import ROOT, TreeTest, lines, tracked

C_FILES = ["*.c", "*.h", "*.inc"]
TEXT = [":!LICENSE", ":!tests/fuzz/corpus"]


def matches(pattern, paths):
    expression = re.compile(pattern)
    return [f"{p}:{n}: {row.strip()}" for p, n, row in lines(paths) if expression.search(row)]


def source_files(*without):
    return [p for p in tracked(*(f"src/{g}" for g in C_FILES))
            if p.relative_to(ROOT / "src").as_posix() not in without]


class Calls(TreeTest):
    # The launcher hands its whole environment on to the workers.
    def test_only_config_reads_the_environment(self):
        self.assert_none(matches(r"\b(secure_)?getenv\s*\(|\b(__)?environ\b",
                                 source_files("base/config.c", "launch/spawn.c")),
                         "the environment is read by base/config.c only")

    # launch/output.c: --prefix-output-with-timestamp.
    def test_wall_clock_only_in_log_lines(self):
        self.assert_none(matches(r"CLOCK_REALTIME|\bgettimeofday\s*\(|[^_a-z]time\s*\(\s*"
                                 r"(NULL|&)|\blocaltime",
                                 source_files("base/log.c", "base/clock.h", "launch/output.c",
                                              "launch/view_text.c")),
                         "wall-clock time is for log lines and output only; use base/clock.h")

    def test_the_library_never_writes_to_stdout(self):
        library = [p for p in source_files() if p.parent.name != "launch"]
        self.assert_none(matches(r"(^|[^a-z_])(printf|puts|putchar)\s*\(|\bstdout\b",
                                 library), "library code does not write to stdout")

    def test_no_calls_that_cannot_be_used_safely(self):
        self.assert_none(matches(r"\b(gets|sprintf|strcat|tmpnam|mktemp|alloca|system|"
                                 r"popen|usleep)\s*\(", source_files()), "unsafe calls")


    def test_no_calls_that_old_libraries_lack(self):
        """Of glibc after 2.28, which the wheel runs with (tools/wheel.sh); base/process.h has
        some of them."""
        self.assert_none(matches(r"\b(closefrom|close_range|sigabbrev_np|sigdescr_np|pidfd_\w+|"
                                 r"strlcpy|strlcat|gettid|tgkill|strerrorname_np|memfd_secret|"
                                 r"execveat|epoll_pwait2|__builtin_cpu_supports)\s*\(",
                                 source_files()), "newer than glibc 2.28")


class Text(TreeTest):
    def test_nothing_is_left_for_later(self):
        words = "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3 + r"\b(?!X)", "HA" + "CK"])
        self.assert_none(matches(rf"\b({words})\b", tracked(*TEXT)), "unfinished work")

    def test_no_place_of_one_machine(self):
        places = "|".join(["/ro" + "ot/", "/ho" + r"me/\w+/", "/wo" + "rk/"])
        self.assert_none(matches(rf"(^|[\s\"'=(:])({places})", tracked(*TEXT)),
                         "paths of one machine")

    def test_no_package_registry_is_named(self):
        hosts = "|".join(["py" + r"pi\.org", "python" + r"hosted\.org",
                          "download.py" + r"torch\.org", "deb" + r"\.debian\.org",
                          "--(extra-)?index" + "-url"])
        self.assert_none(matches(rf"({hosts})", tracked(*TEXT)),
                         "the user's configuration decides where packages come from")

    def test_every_configuration_row_is_read(self):
        """Or marked as accepted without effect; the launcher's own rows by their names."""
        rows = re.findall(r'^CONFIG\(\w+, (\w+), "(\w+)", "[^"]*", [^,]+, [^,]+, ([^,]+),',
                          (ROOT / "src/base/config.def").read_text(), re.M)
        text = "\n".join(p.read_text() for p in tracked("src/*.c", "python/*.py")
                         if p.parent != ROOT / "src/base" or not p.name.startswith("config"))
        self.assertGreater(len(rows), 50)
        self.assert_none([name for field, name, flags in rows if "IGNORED" not in flags and
                          not re.search(rf"(->|\.){field}\b|\"HOROVOD_{name}\"", text)],
                         "declared in config.def and read by nobody")

    def test_form_of_c(self):
        files = tracked(*C_FILES)
        self.assert_none(matches(r"\t", files), "tabs")
        self.assert_none(matches(r"^.{101,}", files),
                         "lines over 100 columns (aim for 88)")
        self.assert_none(matches(r"\s+$", tracked(*C_FILES, "*.py", "*.build", "*.md")),
                         "blanks at the end of a line")
        self.assert_none(matches(r"(^|[\s;{}])//", files), "comments are /* */")

    def test_form_of_python(self):
        self.assert_none(matches(r"^.{101,}|\t", tracked("*.py", "*.pyi")),
                         "lines over 100 columns, tabs")

    def test_files_begin_with_their_idea(self):
        self.assert_none([p.relative_to(ROOT) for p in tracked(*C_FILES)
                          if not p.read_text().startswith("/*")], "no comment on top")


class Tree(TreeTest):
    def test_file_names_are_unique(self):
        names = collections.defaultdict(list)
        for path in tracked(*(f"{d}/{g}" for g in C_FILES
                              for d in ("src", "include", "tests", "bench", "examples"))):
            names[path.name].append(path.relative_to(ROOT).as_posix())
        self.assert_none([v for v in names.values() if len(v) > 1], "names used twice")

    def test_every_source_folder_has_a_guide(self):
        for folder in sorted({p.parent for p in tracked("src/*/*.c")}):
            with self.subTest(folder=folder.name):
                guide = folder / "README.md"
                self.assertTrue(guide.exists(), f"{folder}: no README.md")
                self.assertLessEqual(len(guide.read_text().splitlines()), 40, guide)


class Build(TreeTest):
    """No globbing in meson: what is not listed would silently not be built or run."""

    def assert_listed(self, paths, listing, name_of):
        text = (ROOT / listing).read_text()
        self.assert_none([p.relative_to(ROOT) for p in paths
                          if f"'{name_of(p)}'" not in text], f"not in {listing}")

    def test_every_source_is_built(self):
        for folder in sorted({p.parent for p in tracked("src/*.c")}):
            listing = folder.relative_to(ROOT) / "meson.build"
            # The kernels are listed by instruction set: reduce_avx2.c as 'avx2'.
            self.assert_listed([p for p in sorted(folder.glob("*.c"))
                                if f"'{p.stem.removeprefix('reduce_')}'"
                                not in (ROOT / listing).read_text()],
                               listing, lambda p: p.name)

    def test_every_test_is_run(self):
        for folder in sorted({p.parent for p in tracked("tests/unit/*.c")}):
            listing = folder.relative_to(ROOT) / "meson.build"
            self.assert_listed(sorted(folder.glob("test_*.c")), listing,
                               lambda p: p.stem.removeprefix("test_"))

    def test_every_fuzz_target_is_replayed(self):
        targets = tracked("tests/fuzz/fuzz_*.c")
        self.assert_listed(targets, "tests/fuzz/meson.build",
                           lambda p: p.stem.removeprefix("fuzz_"))
        for target in targets:
            name = target.stem.removeprefix("fuzz_")
            self.assertTrue(tracked(f"tests/fuzz/corpus/{name}/*"), f"{name}: no corpus")

    def test_the_package_lists_its_python_files(self):
        text = (ROOT / "python" / "meson.build").read_text()
        listed = re.findall(r"^\s*'((?:lightning_)?horovod/[^']+)',?$", text, re.M)
        there = [p.relative_to(ROOT / "python").as_posix()
                 for p in [*tracked("python/horovod"), *tracked("python/lightning_horovod")]]
        self.assertEqual(listed, sorted(listed), "keep the list sorted")
        self.assertEqual(sorted(listed), sorted(there))
