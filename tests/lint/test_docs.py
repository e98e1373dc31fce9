"""Documents that follow from the sources do follow, and their links lead somewhere."""
import re
import subprocess
import sys

from tree import ROOT, TreeTest, tracked

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


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

    def test_the_tour_names_what_exists(self):
        """Functions (words with an underscore) and files, as `code`."""
        words = {w for p in tracked("src/*.[ch]", "include/*.h", "python/*.py", "src/*.inc")
                 for w in re.findall(r"\w+", p.read_text())}
        named = set(re.findall(r"`([^`\s]+)`", (ROOT / "docs/tour.md").read_text()))
        functions = {n for n in named if re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]*)+", n)}
        files = {n for n in named if re.fullmatch(r"[a-z]+(/[\w.]+)+\.\w+", n)}
        self.assertGreater(len(functions), 20)
        self.assert_none(sorted(functions - words), "no such function")
        self.assert_none([n for n in sorted(files) if not (ROOT / n).exists()],
                         "no such file")

    def test_versions_agree(self):
        version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]
        self.assertIn(f"## {version}", (ROOT / "CHANGELOG.md").read_text())
