"""ort-gpu-ep bench: what it says of itself, what it compares, rows a second."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ort_gpu_ep import InferenceSession
from ort_gpu_ep.cli import peers
from ort_gpu_ep.cli.plot import plot_load, plot_throughput, plot_times
from ort_gpu_ep.cli.throughput import Throughput, batched, measure, numbers
from ort_gpu_ep.cli.under_load import Row
from ort_gpu_ep.errors import ModelError
from tests.cli.test_cli import call, parsed, printed, rejected
from tests.unit.graphs import model_of

GPU = ("-o", "placement=gpu")


def written(tmp_path: Path, rows: str) -> Path:
    path = tmp_path / "model.onnx"
    weights = {"w": np.random.default_rng(3).standard_normal((16, 8)).astype("f")}
    path.write_bytes(
        model_of(f"(float[{rows}, 16] x) => (float[{rows}, 8] y) {{ y = MatMul(x, w) }}", weights).SerializeToString()
    )
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written(tmp_path, "N")


def test_it_names_adapter_versions_and_placement(model: Path) -> None:
    text = printed("bench", model, "--runs", 3, *GPU).replace("\n", " ")
    for wanted in (
        "adapter: ",
        "placement=gpu: 1 nodes on the GPU, 0 on the CPU",
        f"onnxruntime {onnxruntime.__version__}",
        "ort-gpu-ep ",
    ):
        assert wanted in text
    data = parsed("bench", model, "--runs", 3, "--json", *GPU)
    assert data["nodes"]["gpu"] == 1
    assert data["driver"]


def table_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_markdown_to_share(tmp_path: Path) -> None:
    model = tmp_path / "a folder" / "net_v1|x.onnx"
    model.parent.mkdir()
    written(tmp_path, "N").rename(model)
    done = call(
        "bench", model, "--runs", 3, "--against", "cpu", "--share", *GPU, "-o", f"cache_dir={tmp_path / 'cache'}"
    )
    assert done.returncode == 0, done.stderr
    head, _, *rest = done.stdout.splitlines()
    assert head.startswith(r"**net\_v1\|x.onnx** on ")
    (names, line, ours, cpu) = table_of(done.stdout)
    assert names == ["", "median ms", "p95 ms", "rows/s"]
    assert set(line) == {"---"}
    assert (ours[0], cpu[0]) == ("ort-gpu-ep", "cpu")
    assert float(ours[3].replace(",", "")) == pytest.approx(1e3 / float(ours[1]), rel=0.02, abs=1)
    assert f"onnxruntime {onnxruntime.__version__}" in done.stdout
    assert rest[-1] == "`ort-gpu-ep bench net_v1|x.onnx --runs 3 --against cpu -o placement=gpu -o cache_dir=...`"
    assert str(tmp_path) not in done.stdout


def test_markdown_of_rows_and_images(tmp_path: Path, model: Path) -> None:
    done = call("bench", model, "--runs", 2, "--batch", "1,8", "--share", *GPU)
    assert [row[0] for row in table_of(done.stdout)] == ["batch", "---", "1", "8"]
    assert "`ort-gpu-ep bench model.onnx --runs 2 --batch 1,8 --threads 1 -o placement=gpu`" in done.stdout
    (tmp_path / "image.onnx").write_bytes(model_of("(float[4, 3, 8, 8] x) => (y) { y = Relu(x) }").SerializeToString())
    names, _, row = table_of(call("bench", tmp_path / "image.onnx", "--runs", 3, "--share").stdout)
    assert names[3] == "images/s"
    assert float(row[3].replace(",", "")) == pytest.approx(4e3 / float(row[1]), rel=0.1)
    assert "--share does not go with --json" in rejected("bench", model, "--share", "--json")


def test_the_cpu_is_not_compared_with_itself(model: Path) -> None:
    """placement=auto leaves everything on the CPU on a software adapter."""
    data = parsed("bench", model, "--runs", 3, "--against", "cpu", "--json")
    assert "speedup" not in data
    assert "cpu" not in data
    assert "nothing to compare" in data["notes"][0]
    assert "nothing to compare" in printed("bench", model, "--runs", 3, "--against", "cpu")
    assert parsed("bench", model, "--runs", 3, "--against", "cpu", "--json", *GPU)["speedup"] > 0


def test_rows_a_second(model: Path) -> None:
    data = parsed("bench", model, "--runs", 3, "--batch", "1,8", "--against", "cpu", "--json", *GPU)
    assert [(r["side"], r["batch"]) for r in data["rows"]] == [("this", 1), ("cpu", 1), ("this", 8), ("cpu", 8)]
    assert all(r["per_s"] > 0 and r["median_ms"] > 0 for r in data["rows"])
    assert "rows/s" in printed("bench", model, "--runs", 3, "--batch", "1,8", *GPU)


def test_threads(model: Path) -> None:
    data = parsed("bench", model, "--runs", 3, "--threads", 2, "--json", *GPU)
    assert [(r["threads"], r["batch"]) for r in data["rows"]] == [(2, 1)]


def test_all_threads_are_counted() -> None:
    calls: list[int] = []
    session = SimpleNamespace(run=lambda names, feeds: calls.append(1))
    (row,) = measure({"this": session}, {4: {}}, 3, 5, lambda what, part: None)
    assert len(calls) == 3 + 3 * 5
    assert row.per_s > 0


@pytest.mark.parametrize("text", ["0", "1,x", "1,,2", "-1"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ModelError, match=r"--batch .*: expected numbers like"):
        numbers(text, "--batch")


def test_a_model_that_fixes_its_batch(tmp_path: Path) -> None:
    fixed = written(tmp_path, "4")
    assert "fixes the first dimension" in rejected("bench", fixed, "--batch", "8", *GPU).replace("\n", " ")
    session = InferenceSession(fixed, providers=["CPUExecutionProvider"])
    feeds = {"x": np.zeros((4, 16), "f")}
    assert batched(session, feeds, 1)["x"].shape == (4, 16)


def test_rows_are_repeated(model: Path) -> None:
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    x: Any = np.random.default_rng(1).standard_normal((2, 16)).astype("f")
    made = batched(session, {"x": x}, 5)["x"]
    np.testing.assert_array_equal(made, np.concatenate([x, x, x])[:5])


def test_peers_that_are_not_there(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, peers.WEBGPU, None)
    assert "pip install onnxruntime-ep-webgpu" in rejected(
        "bench", model, "--runs", 3, "--against", "webgpu", *GPU
    ).replace("\n", " ")
    if peers.CUDA_PROVIDER not in onnxruntime.get_available_providers():
        assert "onnxruntime-gpu" in rejected("bench", model, "--runs", 3, "--against", "cuda", *GPU).replace("\n", " ")
    assert call("bench", model, "--against", "abacus").returncode == 2


def test_a_size_is_given_once(tmp_path: Path) -> None:
    """The size by --dim was printed, and the ones by --batch were measured."""
    model = tmp_path / "open.onnx"
    model.write_bytes(model_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }").SerializeToString())
    assert "both set the first size of x" in " ".join(
        rejected("bench", model, "--batch", "1,8", "--dim", "N=3", "--runs", 2).split()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--load", "low", "--batch", "1,8"), "--load does not go with --batch"),
        (("--load", "low", "--threads", "2"), "--load does not go with --threads"),
        (("--load", "low", "--against", "cpu"), "--load does not go with --against"),
        (("--before", "a.json", "--batch", "2"), "--before does not go with --batch"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], message: str, model: Path) -> None:
    assert message in " ".join(rejected("bench", model, *options).split())


def test_the_picture_is_of_what_was_measured(model: Path, tmp_path: Path) -> None:
    """`--batch 1,8 --threads 2 --plot f` dropped both and started load levels."""
    picture = tmp_path / "p.svg"
    data = parsed("bench", model, "--runs", 3, "--batch", "1,8", "--threads", "1,2", "--plot", picture, "--json", *GPU)
    assert [(r["threads"], r["batch"]) for r in data["rows"]] == [(1, 1), (1, 8), (2, 1), (2, 8)]
    text = picture.read_text("utf-8")
    for wanted in ("batch", "this, 1 thread ", "this, 2 threads ", "latency of a run, ms: median"):
        assert f"<!-- {wanted}" in text
    parsed("bench", model, "--runs", 3, "--threads", "1,2", "--plot", picture, "--json", *GPU)
    assert "<!-- threads" in picture.read_text("utf-8")


def test_a_distribution_and_what_was_before(model: Path, tmp_path: Path) -> None:
    picture, before = tmp_path / "p.svg", tmp_path / "before.json"
    before.write_text(call("bench", model, "--runs", 4, "--json", *GPU).stdout)
    data = parsed(
        "bench", model, "--runs", 5, "--before", before, "--against", "cpu", "--plot", picture, "--json", *GPU
    )
    assert (len(data["before"]["times_ms"]), len(data["this"]["times_ms"])) == (4, 5)
    assert data["change"] == pytest.approx(data["before"]["median_ms"] / data["this"]["median_ms"])
    text = picture.read_text("utf-8")
    for side in ("this: median", "before: median", "cpu: median"):
        assert f"<!-- {side}" in text
    assert "of before" in printed("bench", model, "--runs", 3, "--before", before, *GPU)
    before.write_text("{}")
    assert "expected what `ort-gpu-ep bench MODEL --json` printed" in " ".join(
        rejected("bench", model, "--before", before, *GPU).split()
    )


def test_labels_do_not_overlap(tmp_path: Path) -> None:
    """Of a range within one decade, where matplotlib labels every minor tick."""
    import matplotlib.figure

    seen: list[Any] = []
    save = matplotlib.figure.Figure.savefig

    def spy(figure: Any, *given: Any, **more: Any) -> None:
        figure.canvas.draw()
        for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
            labels = [*axis.get_majorticklabels(), *axis.get_minorticklabels()]
            seen.append([label.get_window_extent() for label in labels if label.get_text() and label.get_visible()])
        save(figure, *given, **more)

    rows = [Throughput("this", batch, 1, 2.0 + batch / 8, 10.0) for batch in (1, 2, 4, 8, 16, 32)]
    times = [1.0 + k / 40 for k in range(100)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", spy)
        plot_throughput(tmp_path / "a.png", "t", rows)
        plot_times(tmp_path / "b.png", "t", {"this": times})
        plot_load(tmp_path / "c.png", "t", [Row("none", "gpu", times, 0.9), Row("high", "gpu", times, 0.95)])
    assert len(seen) == 6
    for boxes in seen:
        inside = [box for box in boxes if box.width]
        assert len(inside) >= 2
        assert not [1 for k, a in enumerate(inside) for b in inside[k + 1 :] if a.overlaps(b)]
