#!/bin/sh
# Runs packages that carry their own ONNX models below `ort-gpu-ep exec`, and compares their answers, a program that PyInstaller makes, and
# gunicorn with --preload: tests/clients. Arguments go to pytest. Sets .venv up with the extras `clients` and `frozen`; one of the packages
# brings torch (over 2 GB where pip finds no build for the CPU).
# usage: sh scripts/clients.sh [PYTEST_ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
extras="all,frozen,test,clients"
. scripts/setup.sh
"$python" -m pytest --clients tests/clients "$@"
