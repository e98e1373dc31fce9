"""The modules below horovod.runner keep old names alive; each says who imports it, truly."""
import ast
import re
import tempfile
from pathlib import Path

from tree import ROOT, TreeTest

SAYS = re.compile(r"^Imported by: .+\.$", re.M)


def name_of(path, root):
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imported(tree):
    """Names that may be modules: of ``from a import b`` both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(root):
    """module -> packages (horovod.x) that import it."""
    result = {}
    for path in root.rglob("*.py"):
        package = ".".join(name_of(path, root).split(".")[:2])
        for module in imported(ast.parse(path.read_text())):
            result.setdefault(module, set()).add(package)
    return result


def problems(root):
    known = importers(root)
    for path in sorted(root.glob("horovod/runner/**/*.py")):
        if path.stem.startswith("_"):
            continue
        said = SAYS.search(ast.get_docstring(ast.parse(path.read_text())) or "")
        named = set(re.findall(r"horovod\.\w+", said[0])) if said else None
        true = known.get(name_of(path, root), set())
        if named != true:
            yield f"{path.relative_to(root)}: it is imported by {', '.join(sorted(true))}"


class Imports(TreeTest):
    def test_modules_of_the_runner_say_who_imports_them(self):
        self.assert_none(problems(ROOT / "python"), 'no true line "Imported by: ..."')

    def test_a_wrong_line_is_found(self):
        with tempfile.TemporaryDirectory() as name:
            runner = Path(name) / "horovod" / "runner"
            (Path(name) / "horovod" / "ray").mkdir(parents=True)
            runner.mkdir()
            (Path(name) / "horovod" / "ray" / "a.py").write_text(
                "from horovod.runner import right, wrong, silent\n")
            (runner / "right.py").write_text('"""X.\n\nImported by: horovod.ray.\n"""\n')
            (runner / "wrong.py").write_text('"""X.\n\nImported by: horovod.spark.\n"""\n')
            (runner / "silent.py").write_text('"""X."""\n')
            self.assertEqual([line.split(":")[0] for line in problems(Path(name))],
                             ["horovod/runner/silent.py", "horovod/runner/wrong.py"])
