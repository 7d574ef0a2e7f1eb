"""`explain --html`: the network as one HTML file without network access, in blocks that open and close, to search and
filter."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from pathlib import Path

from ort_gpu_ep.cli.network import Network
from ort_gpu_ep.plugin.explain import Explanation
from ort_gpu_ep.terminal import printable


def page_of(title: str, explained: Explanation) -> str:
    """The whole page. Names of a model are data in it, never markup; the browser runs no script but page.js, whatever
    is in it."""
    here = Path(__file__)
    script = here.with_suffix(".js").read_text("utf-8")
    data = json.dumps(Network(explained).as_dict(), separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "HASH": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "TITLE": escape(printable(title)),
        "ADAPTER": escape(printable(explained.adapter)),
        "SUMMARY": escape(str(explained)),
        "DATA": data,
        "SCRIPT": script,
    }
    text = here.with_suffix(".html").read_text("utf-8")
    return re.sub("@([A-Z]+)@", lambda part: parts[part[1]], text)  # in one go: a name may look like a part
