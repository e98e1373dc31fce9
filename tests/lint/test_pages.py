"""The pages say what exists: links, anchors, variables, options, texts of errors.

The site is built as `make docs` does it, and loads nothing from a network.
"""
import ast
import html.parser
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from tree import ROOT, TreeTest, tracked

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*#*$")
# Variables that only a launcher reads, so that no row of config.def describes them.
LAUNCHERS = re.compile(r'(?:positive_variable\(|environ\.get\(|getenv\()"HOROVOD_(\w+)"')

# Options of other programs, which the pages name as `--option`.
OTHERS = {"signal", "cpuset-cpus", "shm-size", "max-restarts", "rdzv-backend", "rdzv-endpoint",
          "master"}


def prose(path):
    """The text without blocks of code, whose lines are left empty."""
    fenced, result = False, []
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        result.append("" if fenced else line)
    return "\n".join(result)


def anchors(path):
    """The names that MkDocs and code hosts give to headings."""
    found = set()
    for line in prose(path).splitlines():
        heading = HEADING.match(line)
        if heading:
            text = re.sub(r"[^\w\s-]", "", heading[1].replace("`", "").lower()).strip()
            found.add(re.sub(r"[-\s]+", "-", text))
    return found


def pages():
    return tracked("docs/*.md", "README.md", "include/README.md", "examples/*.md")


def build(config, site):
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file",
                           config, "--site-dir", site], capture_output=True, text=True)


def text_of(node):
    """The constant pieces of an expression, in their order."""
    return "".join(n.value for n in ast.walk(node)
                   if isinstance(n, ast.Constant) and isinstance(n.value, str))


class Loads(html.parser.HTMLParser):
    """What a browser fetches for a page, without being asked to follow a link."""

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.urls += [values[name] for name in ("src", "data", "srcset", "poster")
                      if values.get(name)]
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.urls.append(values.get("href") or "")


class Pages(TreeTest):
    def test_anchors_exist(self):
        broken = []
        for path in pages():
            for target in LINK.findall(prose(path)):
                file, _, anchor = target.partition("#")
                page = path.parent / file if file else path
                if anchor and "://" not in target and page.suffix == ".md" and \
                        (not page.exists() or anchor not in anchors(page)):
                    broken.append(f"{path.relative_to(ROOT)}: {target}")
        self.assert_none(broken, "links to headings that are not there")

    def test_every_page_is_in_the_navigation(self):
        shown = set(re.findall(r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
        there = {p.relative_to(ROOT / "docs").as_posix() for p in tracked("docs/*.md")}
        there |= {"api-modules.md", "api-c.md"}             # made while the site is built
        self.assertEqual(shown, there)

    def test_variables_exist(self):
        known = set(re.findall(r'"([A-Z][A-Z0-9_]+)"',
                               (ROOT / "src/base/config.def").read_text()))
        for path in tracked("src/launch/*.c", "python/horovod/spark/*.py"):
            known |= set(LAUNCHERS.findall(path.read_text()))
        self.assertGreater(len(known), 60)
        named = {(p.relative_to(ROOT).as_posix(), n) for p in pages()
                 for n in re.findall(r"\bHOROVOD_([A-Z0-9_]*[A-Z0-9])\b", p.read_text())}
        # What 0.28 read when it was built is named to say that it does nothing now.
        build = re.compile(r"(WITH|WITHOUT)_\w+|GPU_OPERATIONS|CUDA_HOME|NCCL_HOME")
        self.assert_none([f"{p}: HOROVOD_{n}" for p, n in sorted(named)
                          if n not in known and not build.fullmatch(n)], "no such variable")

    def test_options_of_horovodrun_exist(self):
        rows = (ROOT / "src/launch/options.def").read_text()
        known = set(re.findall(r"--([a-z][a-z-]+)", rows))
        known |= set(re.findall(r'"([a-z][a-z-]+)"', (ROOT / "src/base/config.def").read_text()))
        known |= {"no-" + name for name in known} | {"agent"}
        self.assertGreater(len(known), 40)
        wrong = []
        for path in pages():
            text = path.read_text()
            given = re.findall(r"`--([a-z][a-z-]*[a-z])(?![a-z-])", text)
            for line in re.findall(r"\bhorovodrun ([^`\n#]*)", text):
                before = re.split(r"\s(?:python\d?|\./|[\w./-]+\.(?:py|sh))\b", line)[0]
                given += re.findall(r"(?:^|\s)--([a-z][a-z-]+)", before)
            wrong += [f"{path.relative_to(ROOT)}: --{name}" for name in given
                      if name not in known | OTHERS]
        self.assert_none(wrong, "no such option")

    def test_quoted_errors_are_in_the_sources(self):
        """A heading of the troubleshooting page is a piece of an error text, with ... for
        what changes."""
        sources = "\n".join(p.read_text() for p in tracked("src/*.[ch]", "include/*.h",
                                                           "python/*.py"))
        # Pieces of one string over several lines, in C and in Python.
        sources = re.sub(r'"\s*\n?\s*(?:PREFIX\s*)?f?"', "", sources).replace('\\"', '"')
        page = (ROOT / "docs/troubleshooting.md").read_text()
        quoted = re.findall(r"^### (?:HVD-\d+: )?`(.+)`$", page, re.M)
        self.assertGreater(len(quoted), 25)
        self.assert_none([f"{text}: '{piece.strip()}'" for text in quoted
                          for piece in text.split("...")
                          if piece.strip() and piece.strip() not in sources],
                         "not in the sources")

    def test_numbers_of_errors_lead_to_the_page(self):
        rows = re.findall(r'^ADVICE\((\d+), "(.+)"\)$', (ROOT / "src/base/advice.def").read_text(),
                          re.M)
        page = (ROOT / "docs/troubleshooting.md").read_text()
        entries = dict(re.findall(r"^### HVD-(\d+): `(.+)`$", page, re.M))
        self.assertGreater(len(rows), 30)
        self.assertEqual([n for n, _ in rows], list(entries), "numbers, in the order of the page")
        self.assert_none([f"{n}: {piece}" for n, piece in rows
                          if piece.replace('\\"', '"') not in entries[n]], "not in its heading")

    def test_errors_of_python_carry_their_number(self):
        """A raised text that has an entry goes through advised(), which puts its number there."""
        pieces = [piece.replace('\\"', '"') for piece in re.findall(
            r'^ADVICE\(\d+, "(.+)"\)$', (ROOT / "src/base/advice.def").read_text(), re.M)]
        bare, carried = [], 0
        for path in tracked("python/*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                    continue
                calls = [c for c in ast.walk(node.exc) if isinstance(c, ast.Call)]
                if any(getattr(c.func, "id", "") == "advised" for c in calls):
                    carried += 1
                elif any(piece in text_of(node.exc) for piece in pieces):
                    bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
        self.assertGreater(carried, 40)
        self.assert_none(bare, "an error with an entry, without advised()")

    def test_the_reference_is_up_to_date(self):
        result = subprocess.run([sys.executable, ROOT / "tools" / "gen_api.py", "--check"],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)


@unittest.skipUnless(importlib.util.find_spec("material"), "needs tools/setup.sh docs")
class Site(TreeTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.built = build(ROOT / "mkdocs.yml", cls.folder.name)

    def test_it_is_built_without_a_warning(self):
        self.assertEqual(self.built.returncode, 0, self.built.stderr)

    def test_pages_load_nothing_from_a_network(self):
        pages_ = sorted(pathlib.Path(self.folder.name).rglob("*.html"))
        self.assertGreater(len(pages_), 10)
        outside = []
        for path in pages_:
            page = Loads()
            page.feed(path.read_text())
            outside += [f"{path.name}: {url}" for url in page.urls
                        if re.match(r"(\w+:)?//", url)]
        self.assert_none(outside, "loaded from elsewhere")

    def test_the_reference_has_every_module_and_header(self):
        modules = pathlib.Path(self.folder.name, "api-modules.html").read_text()
        for name in ("horovod.numpy", "horovod.ray", "TorchEstimator", "ElasticSampler",
                     "allreduce_async_", "MetricAverageCallback"):
            self.assertIn(name, modules)
        headers = pathlib.Path(self.folder.name, "api-c.html").read_text()
        self.assertIn("hvd_submit_then", headers)
        self.assertIn("hvd_server_new", headers)

    def test_an_error_can_be_linked_to_by_its_number(self):
        page = pathlib.Path(self.folder.name, "troubleshooting.html").read_text()
        self.assertIn('id="hvd-203"', page)

    def test_a_phone_and_a_search_are_served(self):
        front = pathlib.Path(self.folder.name, "index.html").read_text()
        self.assertIn('name="viewport" content="width=device-width', front)
        index = pathlib.Path(self.folder.name, "search/search_index.json").read_text()
        self.assertIn("Gradient accumulation", index)

    def test_a_warning_ends_the_build(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "docs").mkdir()
            pathlib.Path(folder, "docs/index.md").write_text("# x\n\n[y](#nowhere)\n")
            text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
            pathlib.Path(folder, "mkdocs.yml").write_text(
                text.replace("tools/docs_hooks.py", str(ROOT / "tools/docs_hooks.py")))
            done = build(pathlib.Path(folder, "mkdocs.yml"), folder + "/site")
        self.assertEqual(done.returncode, 1)
        self.assertIn("#nowhere", done.stderr)
