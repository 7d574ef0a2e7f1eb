"""What a program that PyInstaller makes needs of this package: all modules, as files, and the shim of this platform.

Modules are imported by name (rows, probes, gradients), and read as text: a hash of the kernels names what was measured
of them. The command and what only some of the optional packages are for is left to the program: --hidden-import brings
it.
"""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

from ort_gpu_ep.shim.build import FOLDER, find_or_build

module_collection_mode = "py"
hiddenimports = collect_submodules(
    "ort_gpu_ep", filter=lambda name: not name.startswith(("ort_gpu_ep.cli", "ort_gpu_ep.__"))
)
excludedimports = ["matplotlib", "PIL", "pyarrow", "pytest", "ray", "rich", "sklearn", "typer"]
shim = find_or_build()
datas = [
    *collect_data_files("ort_gpu_ep", excludes=["shim/shim-*"]),
    # read as text, since wgpu-py is not loaded
    *collect_data_files("wgpu", include_py_files=True, includes=["_version.py"]),
    (str(shim), f"ort_gpu_ep/{FOLDER.name}"),
]
