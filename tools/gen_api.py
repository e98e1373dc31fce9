#!/usr/bin/env python3
"""Writes docs/api.md from the docstrings of horovod.torch.  Parses, imports nothing.

    tools/gen_api.py             writes the page
    tools/gen_api.py --check     exit code 1 if the page is not up to date

A public name is one of ``__all__``.  It is followed from the import that brings it to its
definition; ``rank = _basics.rank`` leads to the method of HorovodBasics.  A function or a
class without a docstring is an error.
"""
import ast
import functools
import inspect
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / "python"
PAGE = ROOT / "docs" / "api.md"
PACKAGE = "horovod.torch"
CONSTANTS = {"Average": "the mean over the ranks, rounded once", "Sum": "the sum",
             "Min": "the smallest", "Max": "the largest", "Product": "the product",
             "Adasum": "the adaptive sum, see [concepts](concepts.md#adasum)"}
CHAPTERS = [
    ("Life cycle and topology", ["init", "shutdown", "abort", "is_initialized", "rank", "size",
                                 "local_rank", "local_size", "cross_rank", "cross_size",
                                 "is_homogeneous"]),
    ("Training", ["DistributedOptimizer", "broadcast_parameters", "broadcast_optimizer_state",
                  "SyncBatchNorm", "Compression", "join"]),
    ("Operations", ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter",
                    "sparse_allreduce_async", "barrier", "poll", "synchronize"]),
    ("Objects", ["broadcast_object", "allgather_object"]),
    ("Process sets", ["ProcessSet", "add_process_set", "remove_process_set"]),
    ("Errors", ["HorovodInternalError"]),
    ("Diagnostics", ["stats", "start_timeline", "stop_timeline"]),
    ("What was built", ["mpi_built", "nccl_built"]),
]
# Names that stand behind another one: allreduce_async_ after allreduce.
FAMILIES = {"allreduce", "allgather", "broadcast", "alltoall", "reducescatter"}
NOT_SHOWN = {"hvd", "mpi_ops", "global_process_set", "elastic"}     # modules and objects
# DistributedOptimizer is a function; what it returns has the methods of these.
RETURNED = {"DistributedOptimizer": ("horovod.torch.optimizer",
                                     ["_DistributedOptimizer", "_Wrapped"])}


@functools.lru_cache(maxsize=None)      # a name has one definition, by whatever way it is found
class Module:
    """The names that a source file defines or imports."""

    def __init__(self, name):
        path = PYTHON / name.replace(".", "/")
        self.path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.defined, self.imported, self.same, self.stars = {}, {}, {}, []
        for node in ast.parse(self.path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.defined[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                if node.names[0].name == "*":
                    self.stars.append(node.module)
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (node.module, alias.name)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.same[node.targets[0].id] = node.value


def public():
    return [ast.literal_eval(e) for e in Module(PACKAGE).same["__all__"].elts]


def find(module, name):
    """The definition of a name; None for a constant."""
    here = Module(module)
    if name in here.defined:
        return here.defined[name]
    if name in here.imported:
        source, original = here.imported[name]
        return None if source == module else find(source, original)     # a submodule
    value = here.same.get(name)
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) \
            and value.value.id == "_basics":
        basics = Module("horovod.common.basics").defined["HorovodBasics"]
        return next((m for m in basics.body if isinstance(m, ast.FunctionDef)
                     and m.name == value.attr), None)
    return next((node for star in here.stars if (node := find(star, name)) is not None), None)


def signature(node):
    """Parameters with their defaults, without types: `name`, or `name=None`."""
    a = node.args
    given = [x for x in a.posonlyargs + a.args if x.arg not in ("self", "cls")]
    defaults = [None] * (len(given) - len(a.defaults)) + a.defaults
    words = [x.arg + ("" if d is None else f"={ast.unparse(d)}")
             for x, d in zip(given, defaults)]
    words += [f"*{a.vararg.arg}"] if a.vararg else []
    words += [f"**{a.kwarg.arg}"] if a.kwarg else []
    return f"{node.name}({', '.join(words)})"


def prose(node):
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    if not text:
        sys.exit(f"{node.name} is public and has no docstring")
    text = text.replace("``", "`")
    # "name<newline>    what it is" is an entry of a list.
    text = re.sub(r"^(\w+)\n    (.*(?:\n    .*)*)", lambda m: f"- `{m[1]}`: " +
                  " ".join(line.strip() for line in m[2].splitlines()), text, flags=re.M)
    return text.rstrip()


def entry(name, level="###"):
    node = find(PACKAGE, name)
    if isinstance(node, ast.ClassDef):
        return class_entry(node, level)
    lines = [f"{level} {name}", "", f"    {signature(node)}", "", prose(node), ""]
    if name in RETURNED:
        module, classes = RETURNED[name]
        lines += ["The optimizer has, beside the methods of its class:", ""]
        for kind in classes:
            lines += methods(Module(module).defined[kind])
        lines.append("")
    return lines


def methods(node):
    return [f"- `{signature(m)}`: {' '.join(prose(m).split())}" for m in node.body
            if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")
            and ast.get_docstring(m)]


def class_entry(node, level):
    own = methods(node)
    return [f"{level} {node.name}", "", prose(node), "", *own, *([""] if own else [])]


def variants(name, names):
    """Of allreduce: allreduce_, allreduce_async, ..., grouped_allreduce, ..."""
    return [n for n in names if name in FAMILIES and n != name
            and re.fullmatch(rf"(grouped_)?{name}(_async)?_?", n)]


def page():
    names, shown = public(), set(NOT_SHOWN) | set(CONSTANTS)
    lines = ["# horovod.torch", "", "Written by `tools/gen_api.py` from the docstrings; do not "
             "edit.", "", "    import horovod.torch as hvd", ""]
    for title, members in CHAPTERS:
        lines += [f"## {title}", ""]
        if title == "Operations":
            lines += ["`op` is one of:", ""]
            lines += [f"- `hvd.{n}`: {t}" for n, t in CONSTANTS.items()] + [""]
        if title == "What was built":
            members = [n for n in names if n.endswith(("_built", "_enabled", "_supported"))]
        for name in members:
            lines += entry(name)
            for other in variants(name, names):
                lines += entry(other, "####")
            shown |= {name, *variants(name, names)}
    missing = sorted(set(names) - shown)
    if missing:
        sys.exit(f"public, but in no chapter of tools/gen_api.py: {', '.join(missing)}")
    return "\n".join(lines).rstrip() + "\n"


def main():
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/api.md is not up to date: run tools/gen_api.py")


if __name__ == "__main__":
    main()
