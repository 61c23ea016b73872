"""What the docs hold: their commands, Python blocks, files, outputs and links."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "launch" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
# First words of a line of shell in an indented block; in a block marked sh every line is one.
PROGRAMS = (
    *("python", "python3", "bash", "pip", "export", "for", "printf", "mkdir", "cp", "curl"),
    *("git", "hf", "gcloud", "kubectl", "xpk", "docker", "tail", "scancel", "source", "."),
)
SHELL = re.compile(rf"(\w+=\S* )*(({'|'.join(map(re.escape, PROGRAMS))}) |\.venv/bin/|\. )")
INLINE = re.compile(r"(?:python3? -m|bash|\.venv/bin/\S+|pip install|hf download|scancel) \S.*")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a page. `name` is the file it is to be saved as, "" where it is none."""

    page: str
    line: int
    language: str
    name: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    @property
    def commands(self) -> tuple[str, ...]:
        """Its lines of shell, each whole, without what stands behind a #."""
        if self.language not in ("", "sh"):
            return ()
        whole = list(_joined(self.lines))
        if self.language == "" and not any(map(SHELL.match, whole)):
            return ()
        return tuple(line for each in whole if (line := _without_comment(each)))


def read(page: Path) -> list[Block]:
    """The blocks of a page, fenced and indented, in their order."""
    blocks: list[Block] = []
    name, lines = str(page.relative_to(ROOT)), page.read_text("utf-8").splitlines()
    n = 0
    while n < len(lines):
        if fence := re.match(r" *```(\S*) ?(\S*)", lines[n]):
            end = next(i for i in range(n + 1, len(lines)) if lines[i].strip() == "```")
            blocks.append(Block(name, n + 1, *fence.groups(), tuple(lines[n + 1 : end])))
            n = end
        elif lines[n].startswith("    ") and lines[n].strip():
            end = n
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            inside = [line[4:] for line in lines[n:end]]
            while not inside[-1].strip():
                inside.pop()
            blocks.append(Block(name, n + 1, "", "", tuple(inside)))
            n = end - 1
        n += 1
    return blocks


def inline_commands(page: Path) -> list[str]:
    """Commands between backticks in the running text."""
    text, inside = [], False
    for line in page.read_text("utf-8").splitlines():
        inside ^= line.lstrip().startswith("```")
        if not inside and not line.startswith("    "):
            text.append(line)
    return [c for c in re.findall(r"`([^`\n]+)`", "\n".join(text)) if INLINE.fullmatch(c)]


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page lead, those to other sites aside."""
    found = re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', page.read_text("utf-8"))
    return [a or b for a, b in found if not (a or b).startswith(("http:", "https:", "mailto:"))]


def tree_paths(block: Block) -> Iterator[Path]:
    """Files and folders that an annotated tree names, by their indentation.

    A line is a path, or several after commas, and two spaces on a remark; more of both may follow.
    """
    folders: list[tuple[int, Path]] = []
    for line in block.lines:
        depth = len(line) - len(line.lstrip())
        while folders and folders[-1][0] >= depth:
            folders.pop()
        parent = folders[-1][1] if folders else Path()
        for names in re.split(r" {2,}", line.strip())[::2]:
            for name in names.split(", "):
                if re.fullmatch(r"[\w./]+(/|\.py)", name):
                    yield parent / name
                    if name.endswith("/"):
                        folders.append((depth, parent / name))


def _joined(lines: tuple[str, ...]) -> Iterator[str]:
    """Lines of shell with what is continued by a backslash or a loop in one."""
    whole, loops = "", 0
    for line in lines:
        mark = "; " if loops and not whole.endswith(" do") else " "
        whole = f"{whole}{mark}{line.strip()}" if whole else line.strip()
        loops += len(re.findall(r"\bdo\b", line)) - len(re.findall(r"\bdone\b", line))
        if whole.endswith("\\"):
            whole = whole[:-1].rstrip()
        elif not loops:
            yield whole
            whole = ""
    assert not whole, f"a command that does not end: {whole}"


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#\s.*$", "", line).strip()
