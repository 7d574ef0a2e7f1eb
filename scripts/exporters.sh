#!/bin/sh
# Sets this checkout up with PyTorch, transformers and onnxscript (the dependency group `exporters`), and runs scripts/exporters.py. Arguments
# go there.
# usage: sh scripts/exporters.sh [ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
extras="all,exporters"
. scripts/setup.sh
exec "$python" scripts/exporters.py "$@"
