#!/bin/sh
# Dawn on the newest Mesa's lavapipe, which has matrix units of 8 x 8 x 8: sets this checkout up with the extra `dawn`, unpacks the driver
# (newest_lavapipe.sh), and runs the tests that need both. Arguments go to pytest.
# With CONFORMANCE=1 also ONNX's node cases through Dawn and, beside their count, through wgpu-native by the same driver.
# usage: [CONFORMANCE=1] sh scripts/dawn.sh [PYTEST_ARGUMENT...]
set -eu
cd "$(dirname "$0")/.."
extras="all,dawn,test"
. scripts/setup.sh
sh scripts/newest_lavapipe.sh .vulkan-newest "$python"
python=.vulkan-newest/bin/python
ORT_GPU_EP_CACHE_DIR=${ORT_GPU_EP_CACHE_DIR:-$PWD/.vulkan-newest/cache}
export ORT_GPU_EP_CACHE_DIR PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
ORT_GPU_EP_ADAPTER=software $python -m ort_gpu_ep doctor --quick || [ $? = 1 ]      # 1: degraded; the probes that failed are in its table
ORT_GPU_EP_WEBGPU=dawn $python -m pytest -m dawn tests/dawn "$@"
[ "${CONFORMANCE:-}" ] || exit 0
for library in dawn wgpu; do
    echo "conformance by $library"
    ORT_GPU_EP_WEBGPU=$library $python -m ort_gpu_ep conformance
done
