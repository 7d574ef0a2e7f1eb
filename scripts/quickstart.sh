#!/bin/sh
# Sets this checkout up, tests the GPU, and finds the face in a photo with pretrained networks (5 MB with the photo's package): on the first
# adapter there is, or on Mesa's software driver where there is none. Writes faces.png.
# usage: sh scripts/quickstart.sh
set -eu
cd "$(dirname "$0")/.."
extras=onnxruntime,cli,examples
. scripts/setup.sh

run() { "$@" & _child=$!; wait "$_child"; _child=; }       # in the background, so that a signal ends it with this script (setup.sh)
show() { echo; echo "\$ $*"; run "$@"; }

show ort-gpu-ep doctor --quick
show python -m models fetch mtcnn_pnet mtcnn_onet
model=$("$python" -c 'from models import pretrained; print(pretrained.path("mtcnn_onet"))')
show ort-gpu-ep explain "$model" -o placement=gpu --no-nodes
echo; echo "\$ python examples/find_faces.py"
run env PYTHONPATH=. "$python" -u examples/find_faces.py
echo
echo "Look at faces.png. Next, in your shell:"
echo "  . $(_bin "$VIRTUAL_ENV")/activate"
[ ! -f .vulkan/env.sh ] || echo "  . .vulkan/env.sh      (Mesa's software driver)"
echo "and with a model of yours:"
echo "  ort-gpu-ep compare MODEL      are the results right?"
echo "  ort-gpu-ep bench MODEL --against cpu      is it faster?"
echo "  ort-gpu-ep exec -o placement=gpu -- python APP.py      your program, unchanged"
