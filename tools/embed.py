#!/usr/bin/env python3
"""Writes a file as a C array.

    tools/embed.py INPUT OUTPUT NAME      `const unsigned char NAME[]` and `NAME_bytes`
"""
import pathlib
import sys

data = pathlib.Path(sys.argv[1]).read_bytes()
name = sys.argv[3]
rows = ",\n".join(", ".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24))
pathlib.Path(sys.argv[2]).write_text(
    f"/* Written by tools/embed.py. */\n#include <stddef.h>\n"
    f"static const unsigned char {name}[] = {{\n{rows}}};\n"
    f"static const size_t {name}_bytes = sizeof {name};\n")
