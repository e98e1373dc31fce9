#!/usr/bin/env python3
"""Checks that the folders of src/ include only what their layer allows.

    tools/check_layers.py [ROOT]      a line per violation; exit code 1 if there is one
"""
import pathlib
import re
import sys

# Folder: what its files may include besides libc, their own headers and
# horovod/horovod.h.  A folder name admits all its headers except *_int.h, which are for
# that folder alone.
RULES = {
    "base": [],
    "wire": ["base"],
    "reduce": ["base"],
    "transport": ["base", "wire"],
    "rendezvous": ["base", "wire", "horovod"],
    "collective": ["base", "reduce", "transport/transport.h"],
    "gpu": ["base"],
    "engine": ["base", "wire", "collective/collective.h", "transport/transport.h",
               "gpu/gpu.h"],
    "api": ["base", "engine/engine.h", "gpu/gpu.h", "rendezvous/rendezvous.h",
            "transport/transport.h", "collective/collective.h", "elastic/driver_link.h",
            "wire/elastic_message.h", "wire/look_message.h", "horovod"],
    "elastic": ["base", "wire", "rendezvous/channel.h", "rendezvous/guests.h",
                "rendezvous/rdv_dial.h", "horovod"],
    "launch": ["base", "wire/look_message.h", "horovod"],
    "python": ["base", "horovod"],
    "tensorflow": ["horovod", "python/calls.h"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def is_allowed(folder, target):
    if target == "horovod/horovod.h" or "/" not in target:
        return True
    if target.startswith(folder + "/"):
        return True
    if target.endswith("_int.h"):
        return False
    return any(target == rule or target.startswith(rule + "/") for rule in RULES[folder])


def violations(root):
    for folder in sorted(p for p in (root / "src").iterdir() if p.is_dir()):
        if folder.name not in RULES:
            yield f"src/{folder.name}: no rule in tools/check_layers.py"
            continue
        for path in sorted(folder.glob("*.[chi]*")):
            for number, row in enumerate(path.read_text().splitlines(), 1):
                found = INCLUDE.match(row)
                if found and not is_allowed(folder.name, found[1]):
                    allowed = ", ".join(RULES[folder.name]) or "libc"
                    yield (f"{path.relative_to(root)}:{number}: {folder.name} must not "
                           f"include {found[1]}; allowed: {allowed}")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    root = root if root.is_dir() else root.parent.parent
    found = list(violations(root))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
