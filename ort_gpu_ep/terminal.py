"""Makes text from a model safe to print on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line: what is not shown as a character (control characters, ends of lines, turns of the writing direction) is
    its escape.

    So a name can't move the cursor, set the window's title, or begin a line that looks like one of ours.
    """
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )
