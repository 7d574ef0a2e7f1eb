#!/bin/sh
# Builds Mesa's drm-shim for Intel's GPUs, by the C compiler alone: a library that, loaded before libdrm, answers what the driver asks the
# kernel. Mesa's own build needs meson and most of Mesa; of its sources it takes those below, and three tables that its scripts write.
# usage: sh scripts/intel_shim.sh SOURCE TOOLS OUT     the folders with Mesa's source package, of libdrm-dev and python3-mako, for the result
set -eu
source=$1 tools=$2 out=$3
tar -xJf "$source"/mesa_*.orig.tar.xz -C "$out" --strip-components=1 --wildcards '*/src/intel' '*/src/util' '*/src/drm-shim' '*/src/c11' \
    '*/src/compiler' '*/src/mesa' '*/src/gallium/include' '*/include'
mkdir -p "$out/made/dev" "$out/made/intel" "$out/objects"
ln -s ../dev "$out/made/intel/dev"
dev=$out/src/intel/dev
run() { PYTHONPATH=$tools/usr/lib/python3/dist-packages "${PYTHON:-python3}" "$@"; }
run "$dev/gen_wa_helpers.py" "$dev/mesa_defs.json" "$out/made/dev/intel_wa.h" "$out/made/dev/intel_wa.c"
run "$dev/intel_device_info_gen_h.py" "$out/made/dev/intel_device_info_gen.h"
run "$dev/intel_device_info_serialize_gen_c.py" "$out/made/dev/intel_device_info_serialize_gen.c"
# Switches of debugging, defined in parts of Mesa that are not built.
echo '#include <stdint.h>
uint64_t intel_debug, intel_simd; int debug_archiver;' > "$out/made/dev/debug.c"
# What meson would have found out about Linux with glibc. NDEBUG: an assertion about ranges of addresses fails with newer drivers.
flags="-O1 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -w -D_GNU_SOURCE -DNDEBUG -DPACKAGE_VERSION=\"0\" -DHAVE_LIBDRM
 -DHAVE_PTHREAD -DHAVE_STRUCT_TIMESPEC -DHAVE_TIMESPEC_GET -DHAVE_THRD_CREATE -DHAVE_MEMFD_CREATE -DHAVE_SECURE_GETENV -DHAVE_REALLOCARRAY
 -DHAVE_DLADDR -DHAVE_DL_ITERATE_PHDR -DHAVE_ENDIAN_H -DHAVE_PROGRAM_INVOCATION_NAME -DHAVE_FUNC_ATTRIBUTE_PACKED
 -DHAVE___BUILTIN_UNREACHABLE -DUSE_GCC_ATOMIC_BUILTINS=1 -DUTIL_ARCH_LITTLE_ENDIAN=1 -DUTIL_ARCH_BIG_ENDIAN=0
 -I$out/made -I$out/made/dev -I$out/include -I$out/src -I$out/src/util -I$out/src/intel -I$dev -I$out/src/intel/common -I$out/src/mesa
 -I$out/src/gallium/include -I$tools/usr/include/libdrm -I$tools/usr/include"
for file in drm-shim/device drm-shim/drm_shim util/hash_table util/set util/vma util/u_debug util/log util/ralloc util/os_misc util/anon_file \
    util/u_math util/simple_mtx util/u_process util/os_file util/rb_tree util/half_float util/u_printf util/strtod util/memstream \
    util/u_cpu_detect util/u_call_once util/u_thread util/fast_idiv_by_const util/parson intel/tools/intel_noop_drm_shim \
    intel/dev/intel_device_info intel/dev/intel_hwconfig intel/dev/intel_kmd intel/dev/i915/intel_device_info \
    intel/dev/xe/intel_device_info intel/common/i915/intel_gem intel/common/intel_gem intel/common/i915/intel_engine; do
    [ -e "$out/src/$file.c" ] || { echo "intel_shim.sh: Mesa's source has no src/$file.c" >&2; exit 1; }
    # shellcheck disable=SC2086  # a list of flags
    ${CC:-cc} $flags -c "$out/src/$file.c" -o "$out/objects/$(echo "$file" | tr / _).o"
done
# shellcheck disable=SC2086
${CC:-cc} $flags -shared -Wl,--gc-sections -Wl,-z,defs -o "$out/libintel_noop_drm_shim.so" "$out"/objects/*.o "$out"/made/dev/*.c -ldl -lm -lpthread
