#!/bin/sh
# The newest Mesa's lavapipe, beside whatever this machine has: Dawn refuses that of Debian 12, and only the newest has matrix units.
# From Debian sid's packages, with their own C library, unpacked into DIR (default: .vulkan-newest); needs no root and installs nothing.
# Such a driver loads only into a process that has its C library, so DIR/bin/python runs PYTHON (default: python3) with it, and the processes
# that this one starts likewise. DIR is a virtual environment to Python; its packages are those of PYTHON's.
# usage: sh scripts/newest_lavapipe.sh [DIR [PYTHON]] && .vulkan-newest/bin/python -m pytest ...
set -eu
dir=${1:-.vulkan-newest}
python=${2:-python3}
say() { echo "newest_lavapipe.sh: $*" >&2; }
[ "$(uname -s)" = Linux ] || { say "lavapipe is a driver of Linux, and this is $(uname -s)"; exit 1; }

code=0
sh "$(dirname "$0")/unpack_debs.sh" --suite sid "$dir/root" mesa-vulkan-drivers libvulkan1 || code=$?
[ "$code" != 2 ] || say "this needs Debian's apt-get and dpkg-deb, its keys and a mirror of it: run it in a container of Debian"
[ "$code" = 0 ] || exit 1

dir=$(cd "$dir" && pwd)
driver=$(find "$dir/root" -name libvulkan_lvp.so | head -n 1)
loader=$(find "$dir/root" -name 'ld-linux*.so.*' | head -n 1)
[ -n "$driver" ] && [ -n "$loader" ] || { say "no lavapipe or no C library in $dir/root: delete $dir and run this again"; exit 1; }
"$python" - "$dir" "$driver" "$loader" <<'END'
import json, os, shlex, sys
from pathlib import Path

folder, driver, loader = map(Path, sys.argv[1:])
manifest, python = folder / "lvp_icd.json", folder / "bin" / "python"
manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": str(driver), "api_version": "1.4.0"}}))
python.parent.mkdir(exist_ok=True)
quoted = {name: shlex.quote(str(path)) for name, path in {
    "manifest": manifest, "loader": loader, "libraries": driver.parent, "python": python, "real": os.path.realpath(sys.executable)}.items()}
python.write_text("""#!/bin/sh
export VK_DRIVER_FILES={manifest} VK_ICD_FILENAMES={manifest}
unset LD_LIBRARY_PATH
exec {loader} --library-path {libraries} --argv0 {python} {real} "$@"
""".format(**quoted))
python.chmod(0o755)
home = Path(os.path.realpath(sys.executable)).parent
system = "true" if sys.prefix == sys.base_prefix else "false"      # what is installed without a virtual environment is the system's
(folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = {system}\nversion = {sys.version.split()[0]}\n")
for name in ("lib", "lib64"):
    place = folder / name
    place.unlink(missing_ok=True)
    if sys.prefix != sys.base_prefix and Path(sys.prefix, name).exists():
        place.symlink_to(Path(sys.prefix, name))
END
say "$dir is set up: $dir/bin/python runs with the newest lavapipe"
