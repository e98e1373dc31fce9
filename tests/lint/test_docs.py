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

    def test_the_tour_names_functions_that_exist(self):
        tour = ROOT / "docs" / "tour.md"
        if not tour.exists():
            return
        text = "\n".join(p.read_text() for p in tracked("src/*.[ch]", "include/*.h",
                                                        "python/*.py", "src/*.inc"))
        named = set(re.findall(r"`([a-z]+_[a-z_0-9]*)`", tour.read_text()))
        self.assert_none(sorted(n for n in named
                                if not re.search(rf"\b{n.split('.')[-1]}\b", text)),
                         "docs/tour.md names what does not exist")

    def test_versions_agree(self):
        version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]
        self.assertIn(f"## {version}", (ROOT / "CHANGELOG.md").read_text())
