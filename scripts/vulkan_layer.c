// A Vulkan layer between wgpu-native and a driver.
//   SPIRV_LAYER_FILE=FILE       for scripts/spirv.py: writes the SPIR-V of each shader module to FILE, and makes no pipeline of it, so that no
//                               driver compiles anything.
//   STATISTICS_LAYER_FILE=FILE  for benchmarks/compilers.py: makes each compute pipeline anew, without a cache, and writes a line of JSON about
//                               it to FILE: the result, CPU milliseconds, and what VK_KHR_pipeline_executable_properties tells.
//   NOTHING_LAYER=1             for tests: submits no command buffers, so that the GPU computes nothing and says that it is done, as behind
//                               Mesa's drm-shims.
// What follows are the parts of Vulkan's and its loader's headers that this needs (Vulkan 1.3, chapters "Instances", "Devices", "Shaders",
// "Pipelines"; the loader's LoaderLayerInterface.md).
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOADER_INSTANCE_CREATE_INFO = 47, LOADER_DEVICE_CREATE_INFO = 48, LAYER_LINK_INFO = 0, SUCCESS = 0, INITIALIZATION_FAILED = -3 };
enum { EXECUTABLE_FEATURES = 1000269000, PIPELINE_INFO, EXECUTABLE_PROPERTIES, EXECUTABLE_INFO, EXECUTABLE_STATISTIC, CAPTURE_STATISTICS = 0x40 };
#define EXECUTABLES "VK_KHR_pipeline_executable_properties"
typedef void (*Function)(void);
typedef Function (*Getter)(void *object, const char *name);
typedef struct Structure { int type; const struct Structure *next; } Structure;
typedef struct Link { struct Link *next; Getter instance_getter; Getter other_getter; } Link;  // a device's other getter is its own
typedef struct { int type; const Structure *next; int function; Link *links; } LayerInfo;
typedef struct { int type; const void *next; uint32_t flags; size_t size; const uint32_t *code; } ShaderModuleInfo;
typedef struct { int type; void *next; uint32_t version; Getter instance_getter; Getter device_getter; Getter physical_getter; } Negotiation;
typedef struct {
    int type; const void *next; uint32_t flags, queues; const void *queue; uint32_t layers; const void *layer; uint32_t extensions;
    const char *const *extension; const void *features;
} DeviceInfo;
typedef struct { int type; const void *next; uint32_t flags, stage; uint64_t module; const char *name; const void *constants; } StageInfo;
typedef struct { int type; const void *next; uint32_t flags; StageInfo stage; uint64_t layout, base; int32_t base_index; } PipelineInfo;
typedef struct { char name[256]; uint32_t version; } Extension;
typedef struct { int type; void *next; uint32_t on; } ExecutableFeatures;
typedef struct { int type; const void *next; uint64_t pipeline; uint32_t index; } Executable;     // a pipeline's, without the index
typedef struct { int type; void *next; uint32_t stages; char name[256], description[256]; uint32_t subgroup; } Properties;
typedef struct {
    int type; void *next; char name[256], description[256]; enum { BOOLEAN, SIGNED, UNSIGNED, FLOAT } format;
    union { uint32_t boolean; int64_t number; double real; } value;
} Statistic;
typedef int (*CreateInstance)(const Structure *, const void *, void **);
typedef int (*CreateDevice)(void *, const Structure *, const void *, void **);
typedef int (*Extensions)(void *, const char *, uint32_t *, Extension *);
typedef int (*CreatePipelines)(void *, uint64_t, uint32_t, const PipelineInfo *, const void *, uint64_t *);
typedef int (*GetProperties)(void *, const Executable *, uint32_t *, Properties *);
typedef int (*GetStatistics)(void *, const Executable *, uint32_t *, Statistic *);
typedef struct {
    int type; const void *next; uint32_t waits; const void *wait, *stages; uint32_t commands; const void *command; uint32_t signals; const void *signal;
} SubmitInfo;
typedef int (*Submit)(void *, uint32_t, const SubmitInfo *, uint64_t);
typedef int (*CreateShaderModule)(void *, const ShaderModuleInfo *, const void *, uint64_t *);

static Getter next_instance, next_device;
static void *instance;
static CreateShaderModule next_module;
static Submit next_submit;
static int tells_statistics;

static Function own(const char *name);

static Function from_instance(void *object, const char *name) {
    Function found = own(name);
    return found ? found : next_instance ? next_instance(object, name) : NULL;
}

static Function from_device(void *object, const char *name) {
    Function found = own(name);
    return found ? found : next_device(object, name);
}

static LayerInfo *links_of(const Structure *info, int type) {
    for (const Structure *each = info->next; each; each = each->next)
        if (each->type == type && ((LayerInfo *)each)->function == LAYER_LINK_INFO) return (LayerInfo *)each;
    return NULL;
}

static int create_instance(const Structure *info, const void *allocator, void **made) {
    LayerInfo *layers = links_of(info, LOADER_INSTANCE_CREATE_INFO);
    if (!layers) return INITIALIZATION_FAILED;
    next_instance = layers->links->instance_getter;
    layers->links = layers->links->next;
    int result = ((CreateInstance)next_instance(NULL, "vkCreateInstance"))(info, allocator, made);
    instance = *made;
    return result;
}

// With the extension that tells statistics, where the driver has it.
static int create_device(void *physical, const DeviceInfo *info, const void *allocator, void **made) {
    LayerInfo *layers = links_of((const Structure *)info, LOADER_DEVICE_CREATE_INFO);
    if (!layers) return INITIALIZATION_FAILED;
    Getter getter = layers->links->instance_getter;
    next_device = layers->links->other_getter;
    layers->links = layers->links->next;
    DeviceInfo more = *info;
    ExecutableFeatures features = {EXECUTABLE_FEATURES, (void *)info->next, 1};
    Extensions offered = (Extensions)getter(instance, "vkEnumerateDeviceExtensionProperties");
    uint32_t count = 0;
    offered(physical, NULL, &count, NULL);
    Extension *each = calloc(count, sizeof *each);
    const char **names = calloc(info->extensions + 1, sizeof *names);
    if (!each || !names) return INITIALIZATION_FAILED;
    offered(physical, NULL, &count, each);
    for (uint32_t i = 0; i < count; i++) tells_statistics |= !strcmp(each[i].name, EXECUTABLES);
    tells_statistics = tells_statistics && getenv("STATISTICS_LAYER_FILE");
    if (info->extensions) memcpy(names, info->extension, info->extensions * sizeof *names);
    names[info->extensions] = EXECUTABLES;
    if (tells_statistics) more.next = &features, more.extension = names, more.extensions++;
    int result = ((CreateDevice)getter(instance, "vkCreateDevice"))(physical, (const Structure *)&more, allocator, made);
    if (result == SUCCESS) next_module = (CreateShaderModule)next_device(*made, "vkCreateShaderModule");
    if (result == SUCCESS) next_submit = (Submit)next_device(*made, "vkQueueSubmit");
    free(each), free(names);
    return result;
}

static int create_shader_module(void *device, const ShaderModuleInfo *info, const void *allocator, uint64_t *made) {
    const char *name = getenv("SPIRV_LAYER_FILE");
    FILE *file = name ? fopen(name, "wb") : NULL;
    if (name && (!file || fwrite(info->code, 1, info->size, file) != info->size || fclose(file))) return INITIALIZATION_FAILED;
    return next_module(device, info, allocator, made);
}

// The executables of a pipeline: an object each, of name, size of subgroups, and the driver's own statistics.
static void tell(FILE *file, void *device, uint64_t pipeline) {
    GetProperties properties = (GetProperties)next_device(device, "vkGetPipelineExecutablePropertiesKHR");
    GetStatistics statistics = (GetStatistics)next_device(device, "vkGetPipelineExecutableStatisticsKHR");
    Executable which = {PIPELINE_INFO, NULL, pipeline, 0};
    uint32_t count = 0;
    properties(device, &which, &count, NULL);
    Properties *each = calloc(count, sizeof *each);
    for (uint32_t i = 0; each && i < count; i++) each[i].type = EXECUTABLE_PROPERTIES;
    if (each) properties(device, &which, &count, each);
    for (uint32_t i = 0; each && i < count; i++) {
        Executable one = {EXECUTABLE_INFO, NULL, pipeline, i};
        uint32_t values = 0;
        statistics(device, &one, &values, NULL);
        Statistic *told = calloc(values, sizeof *told);
        for (uint32_t k = 0; told && k < values; k++) told[k].type = EXECUTABLE_STATISTIC;
        if (told) statistics(device, &one, &values, told);
        fprintf(file, "%s{\"name\": \"%s\", \"subgroup\": %u", i ? ", " : "", each[i].name, each[i].subgroup);
        for (uint32_t k = 0; told && k < values; k++) {
            fprintf(file, ", \"%s\": ", told[k].name);
            if (told[k].format == FLOAT) fprintf(file, "%g", told[k].value.real);
            else if (told[k].format == BOOLEAN) fprintf(file, "%u", told[k].value.boolean);
            else fprintf(file, "%lld", (long long)told[k].value.number);
        }
        fputs("}", file);
        free(told);
    }
    free(each);
}

static double cpu_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static int compile_pipelines(void *device, uint64_t cache, uint32_t count, const PipelineInfo *infos, const void *allocator, uint64_t *made) {
    CreatePipelines next = (CreatePipelines)next_device(device, "vkCreateComputePipelines");
    int result = SUCCESS;
    (void)cache;
    for (uint32_t i = 0; i < count; i++) {
        PipelineInfo info = infos[i];
        if (tells_statistics) info.flags |= CAPTURE_STATISTICS;
        double begin = cpu_ms();
        int one = next(device, 0, 1, &info, allocator, &made[i]);
        double took = cpu_ms() - begin;
        if (one != SUCCESS) result = one;
        FILE *file = fopen(getenv("STATISTICS_LAYER_FILE"), "a");
        if (!file) return INITIALIZATION_FAILED;
        fprintf(file, "{\"result\": %d, \"ms\": %.2f, \"executables\": [", one, took);
        if (one == SUCCESS && tells_statistics) tell(file, device, made[i]);
        fputs("]}\n", file), fclose(file);
    }
    return result;
}

static int create_pipelines(void *device, uint64_t cache, uint32_t count, const void *infos, const void *allocator, uint64_t *made) {
    (void)device, (void)cache, (void)infos, (void)allocator;
    for (uint32_t i = 0; i < count; i++) made[i] = 1;
    return SUCCESS;
}

// Semaphores and the fence as they are asked for.
static int submit_nothing(void *queue, uint32_t count, const SubmitInfo *infos, uint64_t fence) {
    SubmitInfo *empty = calloc(count, sizeof *empty);
    if (!empty) return INITIALIZATION_FAILED;
    if (count) memcpy(empty, infos, count * sizeof *empty);
    for (uint32_t i = 0; i < count; i++) empty[i].commands = 0;
    int result = next_submit(queue, count, empty, fence);
    free(empty);
    return result;
}

static void destroy_pipeline(void *device, uint64_t pipeline, const void *allocator) { (void)device, (void)pipeline, (void)allocator; }

static Function own(const char *name) {
    static const struct { const char *name; Function function; const char *by; } table[] = {
        {"vkGetInstanceProcAddr", (Function)from_instance, NULL}, {"vkGetDeviceProcAddr", (Function)from_device, NULL},
        {"vkCreateInstance", (Function)create_instance, NULL}, {"vkCreateDevice", (Function)create_device, NULL},
        {"vkCreateShaderModule", (Function)create_shader_module, NULL}, {"vkQueueSubmit", (Function)submit_nothing, "NOTHING_LAYER"},
        {"vkCreateComputePipelines", (Function)create_pipelines, "SPIRV_LAYER_FILE"},
        {"vkDestroyPipeline", (Function)destroy_pipeline, "SPIRV_LAYER_FILE"},
        {"vkCreateComputePipelines", (Function)compile_pipelines, "STATISTICS_LAYER_FILE"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name) && (!table[i].by || getenv(table[i].by))) return table[i].function;
    return NULL;
}

__attribute__((visibility("default"))) int vkNegotiateLoaderLayerInterfaceVersion(Negotiation *asked) {
    if (asked->version > 2) asked->version = 2;
    asked->instance_getter = from_instance, asked->device_getter = from_device, asked->physical_getter = NULL;
    return SUCCESS;
}
