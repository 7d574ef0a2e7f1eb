/* The only native code of this package: the two symbols that ONNX Runtime looks up in a plugin library, and the loops of a run
 * that would hold the interpreter lock if they were Python.
 *
 * Python opens this file first and binds its callbacks; ONNX Runtime then finds the library already loaded.
 * It needs no header of ONNX Runtime or wgpu-native, no Python.h and no libc: one file per OS and architecture serves every
 * CPython and every ONNX Runtime from 1.23 on.
 */
typedef __SIZE_TYPE__ usize;

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
EXPORT int DllMainCRTStartup(void *module, unsigned long reason, void *reserved) {
  (void)module; (void)reason; (void)reserved;
  return 1;
}
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef void *(*create_function)(const char *, const void *, const void *, void **, usize, usize *);
typedef void *(*release_function)(void *);
typedef void *(*create_status_function)(int, const char *);
struct api_base { void **(*get_api)(unsigned); const char *(*get_version)(void); };

enum { ORT_FAIL = 1, CREATE_STATUS_SLOT = 0, OLDEST_API = 23 };

static create_function bound_create;
static release_function bound_release;
static const struct api_base *bound_base;

static void *failure(const struct api_base *base, const char *message) {
  void **api = base ? base->get_api(OLDEST_API) : 0;
  return api ? ((create_status_function)api[CREATE_STATUS_SLOT])(ORT_FAIL, message) : 0;
}

/* Stores the Python callbacks; NULLs take them away. */
EXPORT void ort_gpu_ep_bind(create_function create, release_function release) {
  __atomic_store_n(&bound_create, create, __ATOMIC_RELEASE);
  __atomic_store_n(&bound_release, release, __ATOMIC_RELEASE);
}

EXPORT void *CreateEpFactories(const char *name, const void *base, const void *logger, void **factories, usize max, usize *count) {
  create_function create = __atomic_load_n(&bound_create, __ATOMIC_ACQUIRE);
  __atomic_store_n(&bound_base, (const struct api_base *)base, __ATOMIC_RELEASE);
  if (create) return create(name, base, logger, factories, max, count);
  return failure((const struct api_base *)base, "ort_gpu_ep: call ort_gpu_ep.register() instead of registering this library");
}

EXPORT void *ReleaseEpFactory(void *factory) {
  release_function release = __atomic_load_n(&bound_release, __ATOMIC_ACQUIRE);
  return release ? release(factory) : 0;
}

/* What a table's slots point at once the interpreter is about to go: nothing, an empty name, an error. */
EXPORT void *ort_gpu_ep_null(void) { return 0; }
EXPORT const char *ort_gpu_ep_empty(void) { return ""; }
EXPORT void *ort_gpu_ep_gone(void) {
  return failure(__atomic_load_n(&bound_base, __ATOMIC_ACQUIRE), "ort_gpu_ep: the Python interpreter is shutting down");
}

/* ---- a run: functions of wgpu-native are bound once */

typedef void (*set_pipeline_function)(void *pass, void *pipeline);
typedef void (*set_group_function)(void *pass, unsigned index, void *group, usize count, const unsigned *offsets);
typedef void (*dispatch_function)(void *pass, unsigned x, unsigned y, unsigned z);
typedef unsigned (*poll_function)(void *device, unsigned wait, const void *submission);
typedef void (*events_function)(void *instance);
struct text { const char *data; usize length; };
struct step { void *pipeline, *group; unsigned x, y, z, offsets, offset, times; };

static set_pipeline_function set_pipeline;
static set_group_function set_group;
static dispatch_function dispatch;
static poll_function poll;
static events_function process_events;

EXPORT void ort_gpu_ep_use(void *pipeline, void *group, void *workgroups, void *polled, void *events) {
  set_pipeline = (set_pipeline_function)pipeline;
  set_group = (set_group_function)group;
  dispatch = (dispatch_function)workgroups;
  poll = (poll_function)polled;
  process_events = (events_function)events;
}

/* Records dispatches, in order. What may be refused is reported when the command encoder is finished. */
EXPORT void ort_gpu_ep_record(void *pass, const struct step *steps, usize count) {
  void *last = 0;
  for (usize i = 0; i < count; i++) {
    if (steps[i].pipeline != last) set_pipeline(pass, last = steps[i].pipeline);
    set_group(pass, 0, steps[i].group, steps[i].offsets, steps[i].offsets ? &steps[i].offset : 0);
    for (unsigned k = 0; k < steps[i].times; k++) dispatch(pass, steps[i].x, steps[i].y, steps[i].z);
  }
}

/* A WGPUBufferMapCallback that takes no interpreter: the status into the word that `done` points at, 0 before. */
EXPORT void ort_gpu_ep_mapped(int status, struct text message, void *done, void *unused) {
  (void)message; (void)unused;
  __atomic_store_n((int *)done, status, __ATOMIC_RELEASE);
}

/* Steps of a counter between two polls, less than a microsecond: a poll takes locks that another thread's submission wants. */
enum { PAUSE = 300 };

/* Polls a device (Dawn: processes the events of its instance) until the word is set, `most` times at most. Returns the word. */
EXPORT int ort_gpu_ep_poll(void *polled, const int *done, unsigned most) {
  int found = __atomic_load_n(done, __ATOMIC_ACQUIRE);
  for (; !found && most; most--) {
    if (poll) poll(polled, 0, 0); else process_events(polled);
    found = __atomic_load_n(done, __ATOMIC_ACQUIRE);
    for (volatile unsigned pause = 0; !found && pause < PAUSE; pause++) {}
  }
  return found;
}

/* ---- float32 to float16, to the nearest and of two as near to the even one: beyond 65,504 infinity, below 2^-14 by 2^-24 */

static unsigned short half_of(unsigned bits) {
  unsigned sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (unsigned short)(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
  if (size < 0x33000000) return (unsigned short)sign;
  unsigned lost = size < 0x38800000 ? 126 - (size >> 23) : 13;
  unsigned whole = size < 0x38800000 ? (size & 0x7fffff) | 0x800000 : size - 0x38000000;
  return (unsigned short)(sign | (whole + (1u << (lost - 1)) - 1 + (whole >> lost & 1)) >> lost);
}

#if defined(__x86_64__)
typedef float eight_floats __attribute__((vector_size(32), aligned(1), may_alias));
typedef short eight_halves __attribute__((vector_size(16), aligned(1), may_alias));
enum { OSXSAVE_AVX_F16C = 7 << 27, XMM_AND_YMM = 6 };

/* Not __builtin_cpu_supports: it needs the compiler's own library. */
static int asked_processor(void) {
  unsigned a = 1, b, c = 0, d;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  if ((c & OSXSAVE_AVX_F16C) != OSXSAVE_AVX_F16C) return 0;
  __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a & XMM_AND_YMM) == XMM_AND_YMM;
}

/* A virtual machine traps the question, so it is asked once. */
static int has_instructions(void) {
  static int known;
  int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (!found) __atomic_store_n(&known, found = asked_processor() ? 1 : -1, __ATOMIC_RELAXED);
  return found > 0;
}

__attribute__((target("avx,f16c"))) static usize rounded_by_eight(unsigned short *target, const float *source, usize count) {
  usize i = 0;
  for (; i + 8 <= count; i += 8)
    *(eight_halves *)(target + i) = (eight_halves)__builtin_ia32_vcvtps2ph256(*(const eight_floats *)(source + i), 0);
  return i;
}
#elif defined(__aarch64__)
#include <arm_neon.h>

static int has_instructions(void) { return 1; }

static usize rounded_by_eight(unsigned short *target, const float *source, usize count) {
  usize i = 0;
  for (; i + 8 <= count; i += 8) {
    float16x4_t low = vcvt_f16_f32(vld1q_f32(source + i)), high = vcvt_f16_f32(vld1q_f32(source + i + 4));
    vst1q_u16(target + i, vreinterpretq_u16_f16(vcombine_f16(low, high)));
  }
  return i;
}
#else
static int has_instructions(void) { return 0; }
static usize rounded_by_eight(unsigned short *target, const float *source, usize count) {
  (void)target; (void)source; (void)count;
  return 0;
}
#endif

/* Whether rounding is about as fast as copying: where it is not, it is better left to the GPU. */
EXPORT int ort_gpu_ep_rounds_fast(void) { return has_instructions(); }

/* Rounds so many numbers from one address to another. Both may be odd. */
EXPORT void ort_gpu_ep_round(usize target, usize source, usize count) {
  typedef unsigned odd_bits __attribute__((aligned(1), may_alias));
  typedef unsigned short odd_half __attribute__((aligned(1), may_alias));
  usize i = has_instructions() ? rounded_by_eight((unsigned short *)target, (const float *)source, count) : 0;
  for (; i < count; i++) ((odd_half *)target)[i] = half_of(((const odd_bits *)source)[i]);
}
