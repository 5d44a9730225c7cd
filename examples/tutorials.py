"""Run the tutorials of the documentation, and write what they print and show into their pages.

    python examples/tutorials.py            # refresh pages, notebooks and screenshots
    python examples/tutorials.py --check    # run everything, write nothing, fail if a block fails

A page in docs/tutorials/ is its own source. Its blocks run in order, in an empty folder: `bash` in
a shell, `python` in one namespace per page. The `text` block behind a block is what it printed. A
line `<!-- screenshot: FILE SELECTOR NAME -->` takes two pictures of a page that a block wrote, for
light and dark screens. A page that names a notebook has its blocks as cells there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "tutorials"
IMAGES = ROOT / "docs" / "images"
BLOCK = re.compile(
    r"```(?P<kind>bash|python|py)(?P<title> title=\"[^\"]+\")?\n(?P<code>.*?)```\n"
    r"(?:\n```text\n(?P<shown>.*?)```\n)?",
    re.DOTALL,
)
SCREENSHOT = re.compile(r"<!-- screenshot: (\S+) (.+?) (\S+) -->")
NOTEBOOK = re.compile(r"\(\.\./\.\./examples/(\w+\.ipynb)\)|`examples/(\w+\.ipynb)`")
MOST_LINES = 40  # of an output; the middle of a longer one is left out


def run_shell(code: str, folder: Path) -> str:
    """What a shell prints, without the lines of progress that it rewrites."""
    found = subprocess.run(
        ["bash", "-ec", code],
        cwd=folder,
        env={
            **os.environ,
            "COLUMNS": "100",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise SystemExit(f"{code}\nfailed:\n{found.stdout}{found.stderr}")
    return found.stdout


def run_python(code: str, folder: Path, names: dict[str, Any]) -> str:
    """What Python prints; names are kept from block to block."""
    printed, here = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "tutorial", "exec"), names)
    finally:
        os.chdir(here)
    return printed.getvalue()


def shortened(text: str) -> str:
    """The output as it is shown: no blank ends, no line of mere progress, not too long."""
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    lines = [line for line in lines if not re.match(r"epoch \d+/", line)]
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], "...", *lines[-half:]]
    return "\n".join(lines) + "\n" if any(lines) else ""


def take_screenshot(page: Path, selector: str, name: str) -> None:
    """Pictures of a part of a page, `NAME-light.png` and `NAME-dark.png`."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": 1280, "height": 9000},  # nothing scrolls, so nothing sticks
                color_scheme=scheme,
                reduced_motion="reduce",
            )
            opened = context.new_page()
            opened.goto(page.resolve().as_uri())
            opened.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
            taken = opened.locator(selector).first.screenshot()
            image = Image.open(io.BytesIO(taken)).convert("RGB")
            image.crop((0, 0, image.width, min(image.height, 900))).quantize(128).save(
                IMAGES / f"{name}-{scheme}.png", optimize=True
            )
        browser.close()


def notebook(cells: list[tuple[str, str, str]]) -> str:
    """A Jupyter notebook of (kind, source, output) cells."""
    made = []
    for number, (kind, source, output) in enumerate(cells):
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if kind == "markdown":
            cell |= {"cell_type": "markdown"}
        else:
            shown = {"output_type": "stream", "name": "stdout", "text": output.splitlines(True)}
            outputs = [shown] if output else []
            cell |= {"cell_type": "code", "execution_count": None, "outputs": outputs}
            source = f"%%bash\n{source}" if kind == "bash" else source
        made.append(cell | {"source": source.strip("\n").splitlines(True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def run_page(page: Path, *, write: bool) -> None:
    """Run a page's blocks; with `write`, put their output into the page and its notebook."""
    text = page.read_text(encoding="utf-8")
    made, cells, end = [], [], 0
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sys.path.insert(0, temporary)

        def between(part: str) -> None:
            for file, selector, name in SCREENSHOT.findall(part) if write else ():
                take_screenshot(folder / file, selector, name)
            made.append(part)
            words = re.sub(r"<!--.*?-->\n?|!\[.*?\]\(.*?\)(\{.*?\})?\n?", "", part).strip()
            if words:
                cells.append(("markdown", words, ""))

        for block in BLOCK.finditer(text):
            between(text[end : block.start()])
            kind, code, title = block["kind"], block["code"], block["title"] or ""
            print(f"{page.name}: {code.strip().splitlines()[0]}", flush=True)
            if kind == "py":  # a file
                name = re.findall(r'"(.+)"', title)[0]
                (folder / name).write_text(code, encoding="utf-8")
                cells.append(("python", f"%%writefile {name}\n{code}", ""))
                output = ""
            else:
                python = kind == "python"
                output = shortened(
                    run_python(code, folder, names) if python else run_shell(code, folder)
                )
                cells.append((kind, code, output))
            if bool(output) != bool(block["shown"]) and not write:
                raise SystemExit(f"expected the output of {code!r} on {page.name}; run this script")
            made.append(f"```{kind}{title}\n{code}```\n")
            made += [f"\n```text\n{output}```\n"] if output else []
            end = block.end()
        between(text[end:])
        sys.path.remove(temporary)
    if write:
        page.write_text("".join(made), encoding="utf-8")
    if found := NOTEBOOK.search(text):
        file = ROOT / "examples" / (found[1] or found[2])
        if write:
            file.write_text(notebook(cells), encoding="utf-8")
        codes = ["".join(cell["source"]) for cell in json.loads(file.read_text())["cells"]]
        if codes != ["".join(cell["source"]) for cell in json.loads(notebook(cells))["cells"]]:
            raise SystemExit(f"expected {file.name} with the cells of {page.name}; run this script")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="names of pages; by default all")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    pages = [PAGES / f"{name}.md" for name in arguments.pages] or sorted(PAGES.glob("*.md"))
    IMAGES.mkdir(exist_ok=True)
    for page in pages:
        run_page(page, write=not arguments.check)


if __name__ == "__main__":
    main()
