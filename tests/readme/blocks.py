"""The blocks of code in the documents of a first day, in order, and what each is for.

A block is fenced, or indented by four columns after an empty line.  Its language decides:

- `sh`, or indented: commands, run as printed;
- `toml`: a job, or tables that the page's job takes beside its own; `edged validate` accepts it;
- `python`: a whole program.

An HTML comment in the line before a block, invisible on the page, takes it or one command out:

    <!-- excerpt: REASON -->
    <!-- except COMMAND: REASON -->
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "docs/install.md", "docs/watch.md", "docs/jobs.md")
KINDS = ("sh", "toml", "python")
MARK = re.compile(r"<!-- (excerpt|except ([^:]+)): *(.*?) *-->$")
FENCE = re.compile(r"```(\w*)$")


class UnfitBlock(ValueError):
    """A block that neither runs nor is marked, or a wrong mark; with document and line."""


@dataclass(frozen=True)
class Block:
    """One block; `line` is that of its fence, or of its first line."""

    document: str
    line: int
    kind: str
    text: str
    excerpt: str = ""
    """The reason for which it is no whole; empty where it runs."""
    left_out: str = field(default="", kw_only=True)
    """A command of it that does not run."""

    @property
    def place(self):
        return f"{self.document}:{self.line}"

    @property
    def commands(self):
        """Its commands as typed, continued lines joined, without comments and `left_out`."""
        text = self.text.replace("\\\n", " ")
        found = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in text.splitlines()]
        return [line for line in found if line and line != self.left_out]


def blocks(document, text=None):
    """The blocks of a document, or of `text` under its name.  Raises UnfitBlock."""
    lines = ((ROOT / document).read_text() if text is None else text).splitlines()
    found, mark, at = [], None, 0
    while at < len(lines):
        line, begin = lines[at], at
        if line.startswith("<!-- exce"):
            mark, at = MARK.match(line), at + 1
            if not mark or not mark[3]:
                raise UnfitBlock(f"{document}:{at}: a mark is `<!-- excerpt: REASON -->`")
            continue
        if fence := FENCE.match(line):
            at = lines.index("```", at + 1)
            found.append(_block(document, begin + 1, fence[1], lines[begin + 1 : at], mark))
        elif line.startswith("    ") and (at == 0 or not lines[at - 1] or mark):
            while at + 1 < len(lines) and lines[at + 1].startswith("    "):
                at += 1
            inner = [line[4:] for line in lines[begin : at + 1]]
            found.append(_block(document, begin + 1, "sh", inner, mark))
        elif mark and line:
            raise UnfitBlock(f"{document}:{at + 1}: a mark without a block below it")
        if line:
            mark = None
        at += 1
    return found


def _block(document, line, kind, lines, mark):
    text = "\n".join(lines) + "\n"
    if mark and mark[1] == "excerpt":
        return Block(document, line, kind, text, mark[3])
    if kind not in KINDS:
        raise UnfitBlock(f"{document}:{line}: a {kind or 'nameless'} block runs nowhere: mark it")
    made = Block(document, line, kind, text, left_out=mark[2] if mark else "")
    if mark and mark[2] not in Block(document, line, kind, text).commands:
        raise UnfitBlock(f"{document}:{line}: `{mark[2]}` is no command of this block")
    return made


def job_texts(found):
    """(block, text) of each whole job of a page; tables without `name` join the page's job."""
    whole = ""
    for block in found:
        if block.kind == "toml" and not block.excerpt:
            if re.search(r"^name = ", block.text, re.M):
                whole = block.text
            yield block, block.text if block.text == whole else f"{whole}\n{block.text}"
