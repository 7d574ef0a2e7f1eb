"""Documents agree with the code: what they list exists, and what exists is listed."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.defs
import onnx.parser
import pytest
from rich.cells import cell_len

from ort_gpu_ep.cli import COMMANDS, command
from ort_gpu_ep.config import OPTIONS
from ort_gpu_ep.health import tested
from ort_gpu_ep.kernels.registry import KNOWN_OPSET
from ort_gpu_ep.shim import build
from scripts import build_wheel, gen_modules, gen_operators, record_commands, release_metadata

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
WHICH = (ROOT / "docs" / "which-provider.md").read_text("utf-8")
DOCUMENTS = sorted(
    [
        *(
            ROOT / f"{name}.md"
            for name in ("README", "CHANGELOG", "CONTRIBUTING", "GOVERNANCE", "CODE_OF_CONDUCT", "SUPPORT", "SECURITY")
        ),
        *(ROOT / "docs").rglob("*.md"),
    ]
)


@pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < KNOWN_OPSET, reason="this onnx is older than the opsets that the rows know"
)
def test_operators_are_up_to_date() -> None:
    stale = [path.name for path, wanted in gen_operators.documents().items() if path.read_text("utf-8") != wanted]
    assert not stale, "run `python scripts/gen_operators.py`"


def test_the_table_of_probes_names_faults_and_shaders() -> None:
    rows = gen_operators.probes().splitlines()
    assert "| hardmax | the last word or workgroup of a dispatch is left out | `hardmax.wgsl` |" in rows
    assert r"| f32 arithmetic | `x \* y \+ x` becomes `x * y - x` | `adapter` |" in rows


def test_another_vendors_op_is_not_made_by_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(gen_operators.OPS[("", "Softmax")], domain="com.microsoft", name="Soft", since=1)
    monkeypatch.setitem(gen_operators.OPS, ("com.microsoft", "Soft"), row)
    assert "### Soft\n\n" in gen_operators.text()


def test_the_page_of_operators_is_for_users() -> None:
    """Versions, types, what the host reads, and what is declined; nothing of shaders and of ops that no model has."""
    text = gen_operators.text()
    entries = {part.partition("\n")[0]: part for part in text.split("\n### ")[1:]}
    assert len(entries) > 200
    assert "**Versions:** 1, 11, 13\n- **Types:** float32, float16\n" in entries["Softmax"]
    assert "**Read by the host:** `shape`\n" in entries["Reshape"]
    assert "    - with p = …; taken: 1 to 64\n" in entries["LpPool"]
    assert "taken: 1 to 3 axes\n" in entries["MaxPool"]
    assert ".wgsl" not in text
    assert "ort_gpu_ep:" not in text
    anchors = set(re.findall(r"\]\(#([\w-]+)\)", text))
    assert anchors == {anchor(heading) for heading in entries}


def test_readme_counts_the_operators() -> None:
    assert len(re.findall(r"\*\*\d+ operators\*\*", README)) == 1
    assert len(re.findall(r"Of ONNX's [\d,]+ node cases [\d,]+ pass with\nno node on the CPU", README)) == 1


def test_the_count_of_node_cases_is_the_recorded_one() -> None:
    lines = (ROOT / "tests" / "conformance" / "status.txt").read_text("utf-8").splitlines()
    passed, cases = (f"{n:,}" for n in (sum(line.split()[1] == "PASS" for line in lines), len(lines)))
    assert f"Of ONNX's {cases} node cases {passed} pass" in README
    assert f"Of ONNX's {cases} node cases {passed} pass" in (ROOT / "docs" / "status.md").read_text("utf-8")
    assert f"Of ONNX's {cases} node cases {passed} pass" in BENCHMARKS


def test_the_benchmarks_begin_with_a_screen_of_summary() -> None:
    """Date, hardware and versions, the command, and at most 50 lines with its one table."""
    summary = BENCHMARKS.partition("## Correctness")[0]
    assert len(summary.splitlines()) <= 50
    assert len(re.findall(r"^\|---", summary, re.M)) == 1
    for needed in ("NVIDIA H200", "driver 580.", "2026-", "onnxruntime 1.", "python -m benchmarks.peers"):
        assert needed in summary


def table(text: str, head: str) -> list[list[str]]:
    """The cells of each row of the table whose head begins with `head`."""
    lines = text[text.index(f"| {head} |") :].partition("\n\n")[0].splitlines()
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


def test_the_times_beside_other_providers_were_measured() -> None:
    """Each number of the table is one of the benchmarks' or of decision 21."""
    sources = BENCHMARKS + "".join(
        (ROOT / "docs" / name).read_text("utf-8") for name in ("benchmarks-log.md", "decisions/0021-matrix-units.md")
    )
    measured = set(re.findall(r"[\d,]*\d(?:\.\d+)?", sources))
    rows = table(WHICH, "task")[1:]
    assert len(rows) > 10
    for row in rows:
        numbers = re.findall(r"[\d,]*\d(?:\.\d+)?", re.sub("float16|TF32", "", " ".join(row[1:7])))
        assert numbers, row
        assert set(numbers) <= measured, row


def test_the_table_of_support_is_true_to_the_records() -> None:
    """What health/tested.json has is called tested; no other pair of versions is. The systems are those that the native
    file is compiled for."""
    head, *rows = table(WHICH, "onnxruntime")
    known = {(".".join(e["onnxruntime"].split(".")[:2]), f"Python {e['python']}") for e in tested.shipped()}
    assert {
        (row[0], python)
        for row in rows
        for python, cell in zip(head, row, strict=True)
        if re.fullmatch(r"Python 3\.\d+", python) and cell.startswith("tested")
    } == known
    systems = [
        row[0].partition(" (")[0].lower().replace(" ", "-").replace("x86-64", "x86_64")
        for row in table(WHICH, "system")[1:]
    ]
    assert sorted(systems) == sorted(build.ZIG_TARGETS)


def test_readme_says_the_wheels_size() -> None:
    """The most that the script which builds it lets through."""
    assert f"- **One wheel of less than {build_wheel.MAX_NBYTES >> 20} MB**" in README


def test_the_options_page_lists_the_options() -> None:
    wanted = [f"| `{o.name}` | {o.values} | {f'`{o.default}`' if o.default else ''} | {o.doc} |" for o in OPTIONS]
    text = (ROOT / "docs" / "options.md").read_text("utf-8")
    table = text[text.index("| option | values | default |") :].strip().partition("\n\n")[0].splitlines()[2:]
    assert table == wanted, "the table in docs/options.md should be:\n" + "\n".join(wanted)


def test_all_lines_install_from_one_place() -> None:
    """What release_metadata.INSTALL says; and the extras exist."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
    texts = {path: path.read_text("utf-8") for pattern in release_metadata.DOCUMENTS for path in ROOT.glob(pattern)}
    lines = [
        (path.name, *found)
        for path, text in texts.items()
        for found in re.findall(r"pip install '([^'\[]*)\[([\w,]+)\]'", text)
    ]
    assert len(lines) >= 8
    assert [
        line for line in lines if line[1] != release_metadata.INSTALL or not set(line[2].split(",")) <= extras
    ] == []


def test_a_release_changes_all_lines() -> None:
    text = "`pip install '.[all]'`, pip install 'ort-gpu-ep[cli]', pip install onnxruntime"
    assert (
        release_metadata.installing(text, "ort-gpu-ep")
        == "`pip install 'ort-gpu-ep[all]'`, pip install 'ort-gpu-ep[cli]', pip install onnxruntime"
    )
    assert release_metadata.installing(release_metadata.installing(README, "ort-gpu-ep"), ".") == README


@pytest.mark.skipif(release_metadata.INSTALL != ".", reason="the name is ours")
def test_nobody_is_told_to_install_a_name_that_is_not_ours() -> None:
    """There is no release: whoever took the name on PyPI would run code on our users' machines."""
    texts = [
        *DOCUMENTS,
        *(ROOT / "ort_gpu_ep").rglob("*.py"),
        *(ROOT / "examples").glob("*.*"),
        *(ROOT / "scripts").glob("*.*"),
    ]
    assert [
        p.name
        for p in texts
        if p.name != "CHANGELOG.md"
        and re.search(r"pip install[^\n`]*\bort[-_]gpu[-_]ep\b(?!\.git)", p.read_text("utf-8"))
    ] == []


BANNED = (
    r"\breckon",
    r"\bwhatever has\b",
    r"\bgo(es|ing)? by\b",
    r"\bstand-ins?\b",
    r"\bstands for it\b",
    r"takes? (that one|nobody|anybody) along",
    r"\bunder way\b",
    r"\bspoken of\b",
    r"\bof ours\b",
    r"\bfigures\b",
    r"\bsteady\b",
    r"\bLater:",
    r"\bweights apart\b",
    r"takes the word along",
    r"\bthe same texts?\b",
    r"\bwho has the GPU\b",
    r"\bwhat [^.;:]{0,40}\bis of\b",
    r"\brow per op\b",
    r"\bwhose row\b",
    r"\bits row\b",
    r"\brhythms?\b",
    r"\bnobody (gives|tells|waits|plants)\b",
    r"\bfor machines\b",
)
"""Patterns of this project's own words, which a reader who does not know the code has to translate: figures
(parameters), a steady run (a warm one), apart (separate), a row (an op's registration), a word (an error flag), what
something goes by (depends on).
"""

# history; maps of the code; generated from docstrings
_NOT_FOR_USERS = ("CHANGELOG.md", "ARCHITECTURE.md", "modules.md", "OPERATORS.md")


def _prose(text: str) -> str:
    """Without code, in one line."""
    return " ".join(re.sub(r"`[^`]*`", "`", re.sub(r"```.*?```", "", text, flags=re.S)).split())


def test_texts_for_users_are_in_plain_words() -> None:
    documents = [d for d in DOCUMENTS if d.name not in _NOT_FOR_USERS and d.parent.name != "decisions"]
    texts = {
        d.name: d.read_text("utf-8")
        for d in (*documents, ROOT / "examples" / "README.md", ROOT / "examples" / "Dockerfile")
    }
    texts |= {
        f"{name} --help": " ".join([text, *(str(p.help) for p in command(name).params)])
        for name, text in COMMANDS.items()
    }
    texts |= {o.name: o.doc for o in OPTIONS}
    assert len(texts) > 50
    assert [
        (where, found[0]) for where, text in texts.items() for p in BANNED if (found := re.search(p, _prose(text)))
    ] == []


def test_messages_are_in_plain_words() -> None:
    """The texts of exceptions and of the log."""
    found = []
    for path in (ROOT / "ort_gpu_ep").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            logged = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and getattr(node.func.value, "id", "") == "log"
            )
            if isinstance(node, ast.Raise) or logged:
                text = " ".join(
                    n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
                )
                found += [(path.name, node.lineno, match[0]) for p in BANNED if (match := re.search(p, text))]
    assert found == []


def test_readme_is_short() -> None:
    assert len(README.split()) <= 700


@pytest.mark.parametrize(
    "signature",
    [
        "(float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }",
        "(float[batch, 3, height, width] x) => (y) <float[4, 3, 3, 3] w = {W}> { y = Conv(x, w) }",
        "(int64[B, S] ids, int64[B, S] mask, float[B, S, 4] x) => (y) <float[9, 4] t = {T}> { e = Gather(t, ids) s = "
        "Add(e, x) m = Cast<to=1>(mask) "
        "u = Unsqueeze(m, two) y = Mul(s, u) }",
    ],
    ids=["fixed", "open sizes", "three inputs"],
)
def test_the_readmes_python_runs(
    signature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code is not None
    numbers = {"W": 108, "T": 36}
    for name, count in numbers.items():
        signature = signature.replace(f"{{{name}}}", "{" + ", ".join(["0.5"] * count) + "}")
    signature = signature.replace("<float[9, 4]", "<int64[1] two = {2}, float[9, 4]")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> m {signature}')
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(code[1], "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("adapter: ")


def test_the_picture_shows_what_the_benchmarks_say() -> None:
    """Latency in blocks of runs, of the newest table with other providers, and its errors."""
    for row in json.loads((ROOT / "docs" / "peers.json").read_text("utf-8"))["rows"]:
        line = next(line for line in BENCHMARKS.splitlines() if line.startswith(f"| {row['model']}"))
        cells = [cell.strip(" *") for cell in line.split("|")]
        assert [float(cell.split(" / ")[0]) for cell in cells[2:5]] == [row["cpu_ms"], row["webgpu_ms"], row["auto_ms"]]
        assert float(cells[7]) == row["relative_l2"]


def test_readme_commands_are_the_commands() -> None:
    there = set(COMMANDS)
    listed = set(re.findall(r"^\| `ort-gpu-ep (\w+)", README, re.M))
    assert listed == there
    for document in DOCUMENTS:
        assert set(re.findall(r"ort-gpu-ep ([a-z]+)", document.read_text("utf-8"))) <= there, document.name


def test_each_command_is_recorded_at_80_columns() -> None:
    """That they are there: what they print changes with the machine."""
    text = record_commands.DOCUMENT.read_text("utf-8")
    assert list(record_commands.RECORDED) == re.findall(r"^## (\S+)$", text, re.M)
    assert set(record_commands.RECORDED) == set(COMMANDS)
    for name, arguments in record_commands.RECORDED.items():
        assert arguments.split()[0] == name
        assert f"\n## {name}\n\n{COMMANDS[name]}\n" in text, "run `python scripts/record_commands.py`"
        assert f"\n```console\n$ ort-gpu-ep {arguments}\n" in text, "run `python scripts/record_commands.py`"


def test_the_recorder_keeps_what_it_does_not_record_again() -> None:
    text = record_commands.DOCUMENT.read_text("utf-8")
    assert "\n".join([record_commands.HEAD, *record_commands.sections(text).values()]) == text


def test_no_recorded_line_is_longer_than_80_columns() -> None:
    blocks = re.findall(r"```console\n(.*?)```", record_commands.DOCUMENT.read_text("utf-8"), re.S)
    assert len(blocks) == len(COMMANDS)
    assert [line for block in blocks for line in block.splitlines() if cell_len(line) > 80] == []


def test_the_clients_are_those_of_the_group() -> None:
    shown = re.findall(r"^\| (\S+) (\S+) \| .* of [\d, ]+ \|$", (ROOT / "docs" / "drop-in.md").read_text("utf-8"), re.M)
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["clients"]
    # which carries no model
    assert [*(f"{package}=={version}" for package, version in shown), "gunicorn>=23"] == extra


def test_the_reference_names_what_there_is() -> None:
    for dotted in re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.M):
        assert pkgutil.resolve_name(dotted).__doc__, dotted


def test_issues_ask_for_the_report() -> None:
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert "ort-gpu-ep doctor --report report.zip" in template.read_text("utf-8")


def test_the_changelog_is_short_and_in_the_usual_form() -> None:
    """The first release is told in a screen or so; each later version has what Keep a Changelog knows."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    *later, first = re.findall(r"^## \[([\d.]+|Unreleased)\](.*?)(?=^## |\Z)", text, re.M | re.S)
    assert first[0] == "0.1.0"
    assert len(first[1].splitlines()) <= 60
    assert re.findall(r"^### (.+)$", first[1], re.M) == ["Added", "Limits"]
    kinds = {kind for _, version in later for kind in re.findall(r"^### (.+)$", version, re.M)}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    forms = {p.stem: yaml_keys(p.read_text("utf-8")) for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms) >= {"wrong-result", "slow", "adapter", "question", "bug"}
    assert all(keys >= {"name", "description", "body"} for keys in forms.values())


def yaml_keys(text: str) -> set[str]:
    """Of the outermost mapping."""
    return set(re.findall(r"^([a-z-]+):", text, re.M))


def test_the_citation_says_the_version() -> None:
    keys = dict(re.findall(r"^([a-z-]+): (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (keys["version"], keys["license"]) == (project["version"], project["license"])


def test_help_of_the_recorder_writes_nothing() -> None:
    document = ROOT / "docs" / "commands.md"
    before = document.stat().st_mtime_ns
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "record_commands.py", "--help"],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "usage:" in done.stdout
    assert document.stat().st_mtime_ns == before


def test_readme_shows_two_scripts_that_exist() -> None:
    shown = re.findall(r"^sh (\S+)", README, re.M)
    assert shown == ["scripts/quickstart.sh", "scripts/test.sh"]
    assert all((ROOT / script).is_file() for script in shown)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_named_files_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    paths = set(re.findall(r"\b((?:ort_gpu_ep|models|scripts|docs|tests|build_backend)/[\w/.-]*)", text))
    missing = sorted(p for p in paths if not (ROOT / p.rstrip(".")).exists())
    assert not missing
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_page_of_modules_is_up_to_date() -> None:
    assert gen_modules.PAGE.read_text("utf-8") == gen_modules.text(), "run `python scripts/gen_modules.py`"


def test_every_module_says_what_it_is() -> None:
    """In the first sentence of its docstring: the page of modules has nothing else."""
    rows = re.findall(r"^1\. `([\w./-]+)`(.*)$", gen_modules.text(), re.M)
    modules = [p for p in (ROOT / "ort_gpu_ep").glob("*/*.py") if p.name not in ("__init__.py", "__main__.py")]
    assert {p.name for p in modules} <= {name for name, _ in rows}
    assert [name for name, about in rows if not about.strip()] == []


def test_architecture_lists_every_folder() -> None:
    folders = {f"ort_gpu_ep/{p.name}/" for p in (ROOT / "ort_gpu_ep").iterdir() if (p / "__init__.py").is_file()}
    assert set(re.findall(r"^\| `(ort_gpu_ep/\w*/?)` \|[^|]*\|$", ARCHITECTURE, re.M)) == folders | {"ort_gpu_ep/"}


def test_an_order_of_reading_names_files_that_exist() -> None:
    with pytest.raises(ValueError, match="do not exist: \\['gone'\\]"):
        gen_modules.files(ROOT / "ort_gpu_ep" / "weights", "formats gone")
    assert [p.name for p in gen_modules.files(ROOT / "ort_gpu_ep" / "weights", "functions")] == [
        "functions.py",
        "formats.py",
    ]


def test_architecture_is_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150


def test_the_examples_of_an_operator_are_the_sources() -> None:
    """Each block of Python or WGSL, piece by piece, is in the file that the last text before it names."""
    text = (ROOT / "docs" / "adding-an-op.md").read_text("utf-8")
    blocks = re.findall(r"`(ort_gpu_ep/[\w/.]+)`(?:(?!`ort_gpu_ep/|```).)*?```(?:python|wgsl)\n(.*?)```", text, re.S)
    assert len(blocks) == text.count("```python") + text.count("```wgsl") > 4
    for path, code in blocks:
        for piece in code.strip().split("\n\n\n"):
            lines = (
                [line.strip() for line in piece.splitlines()]
                if piece.startswith(("elementwise", "_schema"))
                else [piece]
            )
            assert [each for each in lines if each not in (ROOT / path).read_text("utf-8")] == [], path


def anchor(heading: str) -> str:
    """As GitHub and mkdocs make it."""
    return re.sub(r" +", "-", re.sub(r"[^\w -]", "", heading.lower()))


def test_the_words_of_the_glossary_are_linked() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    words = {anchor(heading) for heading in re.findall(r"^## (.+)$", glossary, re.M)}
    assert len(words) >= 15
    linked = {word for d in DOCUMENTS for word in re.findall(r"\(glossary\.md#([\w-]+)\)", d.read_text("utf-8"))}
    assert linked == words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_to_headings(document: Path) -> None:
    text = document.read_text("utf-8")
    for target, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text):
        page = (document.parent / target).resolve() if target else document
        if page.suffix == ".md":
            headings = {anchor(h) for h in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)}
            assert heading in headings, f"{target}#{heading}"


def test_the_four_ways_lead_somewhere() -> None:
    """Each path of the section names modules that are there, and what they define."""
    section = ARCHITECTURE.split("## Ways through the code")[1].split("## ")[0]
    named = re.findall(r"`([\w/]+\.py)` `(\w+)`", section)
    assert len(named) >= 8
    for path, name in named:
        assert re.search(rf"^ *(def|class) {name}\b", (ROOT / "ort_gpu_ep" / path).read_text("utf-8"), re.M), (
            path,
            name,
        )
