"""One name, one thing: functions that nobody calls, and names that mean two things."""
import collections
import re

from tree import BUILD, ROOT, TreeTest, output, tracked

# What only tests call: they drive, count and choose what else happens by itself.
FOR_TESTS = {"engine_crank", "fault_count", "red_force_isa", "red_isa", "server_count", "tcp_fd"}
# Called from outside the sources: by users, by Python, by the loader.
PUBLIC = re.compile(r"hvd_|horovod_|PyInit_|main$")
PROTOTYPE = re.compile(r"^[a-z][^;{}:#]*\([^;{}:#]*\);", re.M)
STRUCT = re.compile(r"^(?:struct|enum|union) (\w+) \{", re.M)


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def external():
    """{name of a function or an object: objects that define it}"""
    found = collections.defaultdict(set)
    for path in sorted((BUILD / "src").rglob("*.o")):
        for row in output("nm", "--defined-only", path).splitlines():
            _, kind, name = row.split()
            if kind in "TDBR":
                found[name].add(path.name)
    return found


def unused(names, texts):
    """Those that stand in the texts once, where they are defined."""
    count = collections.Counter()
    for text in texts:
        count.update(re.findall(r"\w+", PROTOTYPE.sub("", without_comments(text))))
    return sorted(n for n in names if count[n] < 2)


def defined_twice(texts):
    """Types that two headers define: {name: headers}"""
    found = collections.defaultdict(list)
    for name, text in texts.items():
        for struct in STRUCT.findall(without_comments(text)):
            found[struct].append(name)
    return {struct: names for struct, names in found.items() if len(names) > 1}


class Names(TreeTest):
    def test_every_function_is_called(self):
        texts = [p.read_text() for p in tracked("src/*.c", "src/*.h", "src/*.inc", "src/*.def")]
        # Pasted together by a macro of src/tensorflow and src/reduce.
        pasted = re.compile(r"kernel_create_|red_table_")
        names = [n for n in external() if not PUBLIC.match(n) and not pasted.match(n)]
        self.assert_none([n for n in unused(names, texts) if n not in FOR_TESTS],
                         "functions that nobody calls")

    def test_a_function_that_nobody_calls_is_found(self):
        texts = ["void spare(void);\nvoid used(void);", "void spare(void)\n{\n}\n",
                 "void used(void)\n{\n}\n", "int f(void)\n{\n    used();\n}  /* spare */\n"]
        self.assertEqual(unused(["spare", "used"], texts), ["spare"])

    def test_a_name_is_defined_once(self):
        twice = {n: o for n, o in external().items() if len(o) > 1}
        self.assertEqual(twice, {})

    def test_a_type_is_one_thing(self):
        texts = {str(p.relative_to(ROOT)): p.read_text()
                 for p in tracked("src/*.h", "include/*.h")}
        self.assertEqual(defined_twice(texts), {})

    def test_a_type_that_is_two_things_is_found(self):
        texts = {"a.h": "struct host {\n", "b.h": "struct host {\n/*\nstruct x {\n*/", "c.h":
                 "struct x {\n"}
        self.assertEqual(defined_twice(texts), {"host": ["a.h", "b.h"]})
