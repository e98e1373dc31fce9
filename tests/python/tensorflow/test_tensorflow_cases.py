"""Every case of the case modules, with each of its numbers of ranks.  The modules are read and
not imported: only the ranks import TensorFlow."""
import ast
import os
import pathlib
import types

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
LIMIT = 240.0               # the first one of a pool imports TensorFlow


def found():
    """(module, function, number of ranks) of everything under ``@case``."""
    for path in sorted(HERE.glob("cases_*.py")):
        for node in ast.parse(path.read_text()).body:
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "case":
                    for size in call.args:
                        yield path.stem, node.name, size.value


_tests = sorted(found(), key=lambda t: t[2])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("module,name,size", _tests, ids=[
    f"{module[9:]}-{name}-{size}" for module, name, size in _tests])
def test_tensorflow(ranks, module, name, size):
    ranks(size, types.SimpleNamespace(__module__=module, __name__=name), ENVIRONMENT, LIMIT)
