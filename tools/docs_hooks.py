"""What the site needs beyond MkDocs: links from docs/ to other files of the repository, and the
parts of the reference that are made from the sources (tools/gen_modules.py).

On a code host `[example](../examples/ray)` leads to the file.  The site has docs/ only, so
that there such a link becomes the path as text; everything else is checked by MkDocs.
"""
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gen_modules  # noqa: E402

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:]+)\)")


def on_files(files, config):
    if any(file.src_uri == "api.md" for file in files):     # the tests build other trees, too
        for name, text in gen_modules.pages().items():
            files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    here = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replaced(match):
        path = posixpath.normpath(posixpath.join(here, match[2].partition("#")[0]))
        if match[2].startswith("#") or path.startswith("docs/"):
            return match[0]
        text = match[1].strip("`")
        return f"`{path}`" if text in path or path in text else f"{match[1]} (`{path}`)"
    # "troubleshooting.html#hvd-203" leads to the entry of that number.
    markdown = re.sub(r"^(### (HVD-\d+): .*)$", lambda m: f"{m[1]} {{ #{m[2].lower()} }}", markdown,
                      flags=re.M)
    return LINK.sub(replaced, markdown)
