// A Vulkan layer for scripts/spirv.py: writes the SPIR-V of each shader module to the file $SPIRV_LAYER_FILE, and makes no pipeline of it,
// so that no driver compiles anything. What follows are the parts of Vulkan's and its loader's headers that this needs (Vulkan 1.3, chapters
// "Instances", "Devices", "Shaders", "Pipelines"; the loader's LoaderLayerInterface.md).
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOADER_INSTANCE_CREATE_INFO = 47, LOADER_DEVICE_CREATE_INFO = 48, LAYER_LINK_INFO = 0, SUCCESS = 0, INITIALIZATION_FAILED = -3 };
typedef void (*Function)(void);
typedef Function (*Getter)(void *object, const char *name);
typedef struct Structure { int type; const struct Structure *next; } Structure;
typedef struct Link { struct Link *next; Getter instance_getter; Getter other_getter; } Link;  // a device's other getter is its own
typedef struct { int type; const Structure *next; int function; Link *links; } LayerInfo;
typedef struct { int type; const void *next; uint32_t flags; size_t size; const uint32_t *code; } ShaderModuleInfo;
typedef struct { int type; void *next; uint32_t version; Getter instance_getter; Getter device_getter; Getter physical_getter; } Negotiation;
typedef int (*CreateInstance)(const Structure *, const void *, void **);
typedef int (*CreateDevice)(void *, const Structure *, const void *, void **);
typedef int (*CreateShaderModule)(void *, const ShaderModuleInfo *, const void *, uint64_t *);

static Getter next_instance, next_device;
static void *instance;
static CreateShaderModule next_module;

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

static int create_device(void *physical, const Structure *info, const void *allocator, void **made) {
    LayerInfo *layers = links_of(info, LOADER_DEVICE_CREATE_INFO);
    if (!layers) return INITIALIZATION_FAILED;
    Getter getter = layers->links->instance_getter;
    next_device = layers->links->other_getter;
    layers->links = layers->links->next;
    int result = ((CreateDevice)getter(instance, "vkCreateDevice"))(physical, info, allocator, made);
    if (result == SUCCESS) next_module = (CreateShaderModule)next_device(*made, "vkCreateShaderModule");
    return result;
}

static int create_shader_module(void *device, const ShaderModuleInfo *info, const void *allocator, uint64_t *made) {
    FILE *file = fopen(getenv("SPIRV_LAYER_FILE"), "wb");
    if (!file || fwrite(info->code, 1, info->size, file) != info->size || fclose(file)) return INITIALIZATION_FAILED;
    return next_module(device, info, allocator, made);
}

static int create_pipelines(void *device, uint64_t cache, uint32_t count, const void *infos, const void *allocator, uint64_t *made) {
    (void)device, (void)cache, (void)infos, (void)allocator;
    for (uint32_t i = 0; i < count; i++) made[i] = 1;
    return SUCCESS;
}

static void destroy_pipeline(void *device, uint64_t pipeline, const void *allocator) { (void)device, (void)pipeline, (void)allocator; }

static Function own(const char *name) {
    static const struct { const char *name; Function function; } table[] = {
        {"vkGetInstanceProcAddr", (Function)from_instance}, {"vkGetDeviceProcAddr", (Function)from_device},
        {"vkCreateInstance", (Function)create_instance}, {"vkCreateDevice", (Function)create_device},
        {"vkCreateShaderModule", (Function)create_shader_module}, {"vkCreateComputePipelines", (Function)create_pipelines},
        {"vkDestroyPipeline", (Function)destroy_pipeline}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name)) return table[i].function;
    return NULL;
}

__attribute__((visibility("default"))) int vkNegotiateLoaderLayerInterfaceVersion(Negotiation *asked) {
    if (asked->version > 2) asked->version = 2;
    asked->instance_getter = from_instance, asked->device_getter = from_device, asked->physical_getter = NULL;
    return SUCCESS;
}
