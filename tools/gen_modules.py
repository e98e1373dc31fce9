"""Pages of the reference that only the site has: the other Python modules, and the C headers.

tools/docs_hooks.py adds them while the site is built, so that a change of a docstring needs no
change of a page.  A public function or class without a docstring is an error.
"""
import ast
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gen_api  # noqa: E402

MODULES = ["horovod.numpy", "horovod.torch.elastic", "horovod.tensorflow",
           "horovod.tensorflow.keras", "horovod.tensorflow.keras.callbacks",
           "horovod.tensorflow.elastic", "horovod.lightning", "horovod.ray", "horovod.spark",
           "horovod.spark.torch", "horovod.spark.lightning", "horovod.data"]
# Names that a module finds only when they are asked for.
ELSEWHERE = {("horovod.lightning", "HorovodStrategy"): "horovod.lightning._strategy"}
HEADERS = ["include/horovod/horovod.h", "include/horovod/driver.h"]
CHAPTER = re.compile(r"^/\* ---- (?:\d+\. )?(.+?) -+ \*/$", re.M)


def names(module):
    found = gen_api.Module(module).same.get("__all__")
    return [n for e in getattr(found, "elts", []) if not (n := ast.literal_eval(e)).startswith("_")]


def definition(module, name):
    """Where it leads; None for constants, and for what comes from outside the sources."""
    try:
        return gen_api.find(ELSEWHERE.get((module, name), module), name)
    except (OSError, KeyError, AttributeError):
        return None


def introduction(module):
    text = ast.get_docstring(ast.parse(gen_api.Module(module).path.read_text())) or ""
    return text.replace("``", "`")


def of_module(module):
    lines = [f"## {module}", "", introduction(module), ""]
    known = set(gen_api.public())
    same, other = [], []
    for name in sorted(names(module)):
        node = definition(module, name)
        if node is None:
            other.append(f"`{name}`")
        elif name in known and node is definition(gen_api.PACKAGE, name):
            same.append(f"`{name}`")
        elif isinstance(node, ast.ClassDef):
            lines += gen_api.class_entry(node, "###")
        else:
            lines += [f"### {name}", "", f"    {gen_api.signature(node)}", "",
                      gen_api.prose(node), ""]
    if same:
        lines += [f"As in [horovod.torch](api.md): {', '.join(same)}.", ""]
    if other:
        lines += [f"Constants and submodules: {', '.join(other)}.", ""]
    return lines


def modules_page():
    lines = ["# Other Python modules", "", "From the docstrings. `horovod.torch` has "
             "[a page of its own](api.md).", ""]
    for module in MODULES:
        lines += of_module(module)
    return "\n".join(lines)


def headers_page():
    lines = ["# The C headers", "", "`#include <horovod/horovod.h>` for workers, "
             "`<horovod/driver.h>` for programs that start jobs; how to build with them: "
             "[numpy and C](numpy.md#c).", ""]
    for path in HEADERS:
        text = (gen_api.ROOT / path).read_text()
        lines += [f"## {pathlib.Path(path).name}", ""]
        parts = CHAPTER.split(text)
        pieces = [("", parts[0])] + list(zip(parts[1::2], parts[2::2]))
        for title, body in pieces:
            lines += [f"### {title}", ""] if title else []
            lines += ["```c", body.strip(), "```", ""]
    return "\n".join(lines)


def pages():
    """{name of the page: its text}"""
    return {"api-modules.md": modules_page(), "api-c.md": headers_page()}
