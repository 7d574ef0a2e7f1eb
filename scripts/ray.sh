#!/bin/sh
# Sets this checkout up with Ray and runs the tests on a Ray cluster of two nodes on this machine. Arguments go to pytest.
# usage: sh scripts/ray.sh [PYTEST_ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
extras="all,ray,test"
. scripts/setup.sh
exec "$python" -m pytest -m ray tests/scoring tests/cli/test_examples.py "$@"
