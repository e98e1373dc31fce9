"""Documents that follow from the sources do follow, and their links lead somewhere."""
import re
import subprocess
import sys

from tree import ROOT, TreeTest, tracked

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")

# The tour: one function or several, then their file, as in "`a`, `b` and `c` (`src/x.c`)".
PLACED = re.compile(r"((?:`\w+`(?:,|,?\s+and)\s+)*`\w+`)\s+\(`([\w/.]+\.\w+)`[,)]")
NAME = re.compile(r"`([a-z_]\w*)`")
FILE = re.compile(r"`([\w/.]+\.(?:c|h|inc|py|def|pml))`")


def defines(path, function):
    text = path.read_text()
    if path.suffix == ".py":
        return re.search(rf"^ *def {function}\(", text, re.M) is not None
    head = rf"^\w[\w *]*\b{function}\([^;{{}}]*\)\s*\{{"
    return re.search(head, text, re.M) is not None


def tour_problems(text):
    """Every lower-case word as `code` is a function, and its file is said where it comes
    first; it is defined there, not only declared or called."""
    problems = [f"no file {f}" for f in FILE.findall(text) if not (ROOT / f).is_file()]
    seen = set()
    for place in PLACED.finditer(text):
        for name in re.findall(r"`(\w+)`", place[1]):
            file = ROOT / place[2]
            if file.is_file() and not defines(file, name):
                problems.append(f"`{name}` is not defined in {place[2]}")
    placed = [range(m.start(1), m.end(1)) for m in PLACED.finditer(text)]
    for word in NAME.finditer(text):
        if word[1] not in seen and not any(word.start() in span for span in placed):
            problems.append(f"`{word[1]}` without its file")
        seen.add(word[1])
    return problems


class Documents(TreeTest):
    def test_the_page_of_the_configuration_is_up_to_date(self):
        result = subprocess.run([sys.executable, ROOT / "tools" / "gen_docs.py", "--check"],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_links_lead_to_files(self):
        broken = []
        for path in tracked("*.md"):
            for target in LINK.findall(path.read_text()):
                if "://" in target or target.startswith("mailto:"):
                    continue
                if not (path.parent / target).exists():
                    broken.append(f"{path.relative_to(ROOT)}: {target}")
        self.assert_none(broken, "links to nothing")

    def test_make_targets_named_in_documents_exist(self):
        known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
        named = {(path.relative_to(ROOT).as_posix(), name) for path in tracked("*.md")
                 for name in re.findall(r"\bmake ([a-z-]+)\b`", path.read_text())}
        self.assert_none([f"{p}: make {n}" for p, n in sorted(named) if n not in known],
                         "no such target")

    def test_the_tour_says_where_each_function_is(self):
        text = (ROOT / "docs/tour.md").read_text()
        self.assertGreater(len(PLACED.findall(text)), 50)
        self.assert_none(tour_problems(text), "docs/tour.md")

    def test_a_wrong_tour_is_noticed(self):
        for text, problem in {
            "`hvd_init` starts": "`hvd_init` without its file",
            "`hvd_init`; `hvd_init` (`src/api/job.c`)": "`hvd_init` without its file",
            "`hvd_init` (`src/api/formed.c`)": "`hvd_init` is not defined in src/api/formed.c",
            "`mesh_fail` (`src/transport/transport.h`)":
                "`mesh_fail` is not defined in src/transport/transport.h",
            "`mesh_fail` (`src/api/job.c`)": "`mesh_fail` is not defined in src/api/job.c",
            "`step`, `zip` (`python/horovod/torch/optimizer.py`)":
                "`zip` is not defined in python/horovod/torch/optimizer.py",
            "see `src/api/jobs.c`": "no file src/api/jobs.c",
            "see `job.c`": "no file job.c",
        }.items():
            self.assertEqual(tour_problems(text), [problem])
        self.assertEqual(tour_problems("`hvd_init`\nand `job_use` (`src/api/job.c`), `hvd_init`"),
                         [])

    def test_versions_agree(self):
        version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]
        self.assertIn(f"## {version}", (ROOT / "CHANGELOG.md").read_text())
