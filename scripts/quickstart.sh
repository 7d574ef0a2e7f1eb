#!/bin/sh
# Sets this checkout up and runs a real pretrained model (a face landmark network, 1.6 MB) on the GPU: the first adapter
# there is, or Mesa's software driver where there is none.
# usage: sh scripts/quickstart.sh
set -eu
cd "$(dirname "$0")/.."
extras=onnxruntime,cli
. scripts/setup.sh

show() { echo; echo "\$ $*"; "$@"; }

show ort-gpu-ep doctor --quick
show python -m models fetch mtcnn_onet
model=$("$python" -c 'from models import pretrained; print(pretrained.path("mtcnn_onet"))')
show ort-gpu-ep run "$model" -o placement=gpu
show ort-gpu-ep explain "$model" -o placement=gpu
echo
echo "next, with a model of yours:"
echo "  ort-gpu-ep compare MODEL      are the results right?"
echo "  ort-gpu-ep bench MODEL --against cpu      is it faster?"
echo "  ort-gpu-ep exec -o placement=gpu -- python APP.py      your program, unchanged"
