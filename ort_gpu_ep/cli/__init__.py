"""The `ort-gpu-ep` command: one file per subcommand."""

from __future__ import annotations

import typer

from ort_gpu_ep.cli import bench, calibrate, conformance, doctor, explain, options, run

app = typer.Typer(
    name="ort-gpu-ep", help="ONNX models on any GPU: run, explain and measure them, and check the driver.", no_args_is_help=True,
    pretty_exceptions_enable=False, add_completion=False)

app.command()(run.run)
app.command()(explain.explain)
app.command()(bench.bench)
app.command()(calibrate.calibrate)
app.command()(conformance.conformance)
app.command()(doctor.doctor)
app.command("options")(options.options)
