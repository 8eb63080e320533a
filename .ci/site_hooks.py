"""Hooks of the site: the project files at the root become pages, and links between them and `docs/` stay valid."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}

_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")

_FENCE = re.compile(r"^(```\w+) \w+$", re.MULTILINE)
"""What a block of code needs, for its test, stands behind the language; the site's parser takes the language alone."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside `docs/`."""
    for name, page in ROOT_PAGES.items():
        text = Path(config.config_file_path).with_name(name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site; a file that the site lacks is named without a link."""
    names = {page: name for name, page in ROOT_PAGES.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def relinked(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        inside = ROOT_PAGES.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(inside) is None:
            known = Path(config.config_file_path).with_name(target.partition("/")[0]).exists()
            return match[1] if known else match[0]
        folder = posixpath.dirname(page.file.src_uri) or "."
        return f"[{match[1]}]({posixpath.relpath(inside, folder)}{match[3] or ''})"

    return _FENCE.sub(r"\1", _LINK.sub(relinked, markdown))
