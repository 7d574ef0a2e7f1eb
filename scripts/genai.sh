#!/bin/sh
# Sets this checkout up with onnxruntime-genai (which needs a newer onnxruntime than we do) and runs the tests of its loop. Arguments go to
# pytest.
# usage: sh scripts/genai.sh [PYTEST_ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
extras="all,genai,test"
. scripts/setup.sh
exec "$python" -m pytest --clients tests/clients/test_genai.py "$@"
