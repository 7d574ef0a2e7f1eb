/* Loads a shim as Python does, looks up all that it exports and calls it, with stand-ins for what it is bound to: scripts/shim_arm64.sh. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct step { void *pipeline, *group; unsigned x, y, z, offsets, offset; };
struct text { const char *data; size_t length; };

static char calls[256];
static int polls, done;

static void *create(const char *name, const void *base, const void *logger, void **factories, size_t most, size_t *count) {
  (void)base; (void)logger; (void)factories;
  *count = most;
  return (void *)name;
}
static void *release(void *factory) { return factory; }
static void pipeline(void *pass, void *used) { (void)pass; strcat(calls, (const char *)used); }
static void group(void *pass, unsigned index, void *used, size_t count, const unsigned *offsets) {
  (void)pass;
  sprintf(calls + strlen(calls), "%u%s%zu/%u", index, (const char *)used, count, offsets ? *offsets : 0);
}
static void groups(void *pass, unsigned x, unsigned y, unsigned z) { (void)pass; sprintf(calls + strlen(calls), "(%u,%u,%u)", x, y, z); }
static unsigned poll(void *device, unsigned wait, const void *submission) {
  (void)device; (void)wait; (void)submission;
  done = ++polls == 3 ? 7 : 0;
  return 0;
}

static void *library;

static void *found(const char *name) {
  void *address = dlsym(library, name);
  if (!address) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
  return address;
}

static void expect(int holds, const char *what) {
  if (!holds) { fprintf(stderr, "wrong: %s (calls: %s)\n", what, calls); exit(1); }
}

int main(int count, char **arguments) {
  library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : 0;
  if (!library) { fprintf(stderr, "%s\n", count == 2 ? dlerror() : "usage: shim_loader SHIM"); return 1; }
  void *(*make)(const char *, const void *, const void *, void **, size_t, size_t *) = found("CreateEpFactories");
  void *(*end)(void *) = found("ReleaseEpFactory");
  void (*bind)(void *, void *) = found("ort_gpu_ep_bind");
  size_t made = 0;
  expect(!make("a", 0, 0, 0, 2, &made) && !made && !end("b"), "what nothing is bound to");
  bind((void *)create, (void *)release);
  expect(!strcmp(make("a", 0, 0, 0, 2, &made), "a") && made == 2 && !strcmp(end("b"), "b"), "callbacks");
  expect(!((void *(*)(void))found("ort_gpu_ep_null"))() && !*((const char *(*)(void))found("ort_gpu_ep_empty"))(), "null and empty");
  expect(!((void *(*)(void))found("ort_gpu_ep_gone"))(), "gone");
  ((void (*)(void *, void *, void *, void *, void *))found("ort_gpu_ep_use"))(
      (void *)pipeline, (void *)group, (void *)groups, (void *)poll, 0);
  struct step steps[] = {{"p", "g", 1, 2, 3, 0, 0}, {0, "h", 4, 5, 6, 1, 256}};
  steps[1].pipeline = steps[0].pipeline;
  ((void (*)(void *, const struct step *, size_t))found("ort_gpu_ep_record"))(0, steps, 2);
  expect(!strcmp(calls, "p0g0/0(1,2,3)0h1/256(4,5,6)"), "the dispatches");
  expect(((int (*)(void *, const int *, unsigned))found("ort_gpu_ep_poll"))(0, &done, 9) == 7 && polls == 3, "polling");
  ((void (*)(int, struct text, void *, void *))found("ort_gpu_ep_mapped"))(5, (struct text){"", 0}, &done, 0);
  expect(done == 5, "the mapped buffer's status");
  const float numbers[] = {1, -2, 65519, 65520, 0x1p-25f, 0x1.8p-24f, 0x1.002p0f, 0x1.006p0f, 0x1p-14f};
  const unsigned short wanted[] = {0x3c00, 0xc000, 0x7bff, 0x7c00, 0, 2, 0x3c00, 0x3c02, 0x400};
  unsigned short rounded[9];
  int fast = ((int (*)(void))found("ort_gpu_ep_rounds_fast"))();
  for (int each = 9; each > 0; each -= 8) {     /* eight at a time, and one after another */
    memset(rounded, 0, sizeof rounded);
    for (int k = 0; k < 9; k += each)
      ((void (*)(size_t, size_t, size_t))found("ort_gpu_ep_round"))((size_t)(rounded + k), (size_t)(numbers + k), (size_t)each);
    expect((fast == 0 || fast == 1) && !memcmp(rounded, wanted, sizeof wanted), "rounding to float16");
  }
  puts("the shim loads, and all of its functions do what they should");
  return 0;
}
