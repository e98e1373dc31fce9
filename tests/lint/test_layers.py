"""The layers of src/: the tree keeps the rules, and the checker notices when it does not."""
import pathlib
import sys
import tempfile

from tree import ROOT, TreeTest

sys.path.insert(0, str(ROOT / "tools"))
import check_layers  # noqa: E402


def check(includes):
    """Violations of a tree with one file per folder, given as {path: include}."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for path, target in includes.items():
            file = root / "src" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'#include "{target}"\n')
        return list(check_layers.violations(root))


class Layers(TreeTest):
    def test_the_tree_keeps_the_rules(self):
        self.assert_none(check_layers.violations(ROOT), "layers")

    def test_upward_includes_are_found(self):
        self.assertEqual(len(check({"base/a.c": "wire/frame.h"})), 1)
        self.assertEqual(len(check({"transport/a.c": "engine/engine.h"})), 1)
        self.assertEqual(len(check({"launch/a.c": "engine/engine.h"})), 1)

    def test_other_folders_are_entered_by_their_header(self):
        self.assertEqual(len(check({"engine/a.c": "transport/tcp.h"})), 1)
        self.assertEqual(len(check({"engine/a.c": "wire/wire_int.h"})), 1)
        self.assertEqual(check({"engine/a.c": "transport/transport.h",
                                "wire/b.c": "wire/wire_int.h"}), [])

    def test_a_new_folder_needs_a_rule(self):
        self.assertEqual(len(check({"misc/a.c": "base/log.h"})), 1)
