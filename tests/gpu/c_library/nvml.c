/*
 * A small stand-in for libnvidia-ml.so.1, so that tests can cross a real C border without a GPU:
 * one H100 with 80 GB that has MIG. It is no code of NVIDIA's.
 *
 * It is strict where C is not. A wrong structure version is refused; a NULL to write to, or a
 * handle that this library never gave (cut to 32 bits, say), ends the program with a message.
 *
 * The state is in this process' memory and ends with it. The environment variable
 * STAND_IN_USER=PID puts a process on the GPU, STAND_IN_CLIENT=PID a client of MPS. Built with
 * -DMINIMAL the library only counts and names its GPU; it has none of the other functions.
 *
 * It holds no lock: the caller must not let two threads change the GPU at once.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define GPU_UUID "GPU-c0ffee00-1111-2222-3333-444444444444"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* --- what is there ---------------------------------------------------------------------------- */

#define MOST_INSTANCES 7

/* Compute instances lie at multiples of their span, which is a power of two on Hopper. */
typedef struct {
    unsigned id; /* also NVML's enumeration value */
    unsigned slices;
    unsigned multiprocessors;
    unsigned count;
    unsigned span;
} ComputeProfile;

/* GPU instances lie at multiples of their size. */
typedef struct {
    const char *name;
    unsigned kind; /* NVML's enumeration value */
    unsigned id;
    unsigned slices;
    unsigned count;
    unsigned multiprocessors;
    unsigned copy_engines;
    unsigned ofa;
    unsigned long long megabytes;
    unsigned places;
    unsigned size;
    ComputeProfile compute[5]; /* ends early with a count of 0 */
} GpuProfile;

struct nvmlDevice_st {
    struct nvmlComputeInstance_st *compute; /* NULL for the GPU itself */
    nvmlComputeMode_t mode;
};

struct nvmlComputeInstance_st {
    bool exists;
    unsigned id;
    const ComputeProfile *profile;
    nvmlPlacement_t placement;
    struct nvmlGpuInstance_st *parent;
    struct nvmlDevice_st device; /* its MIG device */
};

struct nvmlGpuInstance_st {
    bool exists;
    unsigned id;
    const GpuProfile *profile;
    nvmlPlacement_t placement;
    struct nvmlComputeInstance_st compute[MOST_INSTANCES];
};

static unsigned initialised; /* how often */
static struct nvmlDevice_st gpu;
static struct nvmlGpuInstance_st instances[MOST_INSTANCES];

/* --- checks ----------------------------------------------------------------------------------- */

#define TRY(call)                      \
    do {                               \
        nvmlReturn_t code_ = (call);   \
        if (code_ != NVML_SUCCESS) {   \
            return code_;              \
        }                              \
    } while (0)

/* Ends the program: with NVIDIA's library it would crash here, or go on with wrong memory. */
static void insist(bool right, const char *function, const char *what)
{
    if (!right) {
        fprintf(stderr, "stand-in: %s: %s\n", function, what);
        abort();
    }
}

#define INSIST_ON(pointer) insist((pointer) != NULL, __func__, #pointer " is NULL")

/* A GPU or a MIG device that is there. */
static nvmlReturn_t check_device(nvmlDevice_t device, const char *function)
{
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (device == &gpu) {
        return NVML_SUCCESS;
    }
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        for (unsigned j = 0; j < MOST_INSTANCES; j++) {
            if (device == &instances[i].compute[j].device) {
                bool there = instances[i].exists && instances[i].compute[j].exists;
                return there ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
            }
        }
    }
    insist(false, function, "this is no handle of a device");
    return NVML_ERROR_INVALID_ARGUMENT;
}

#define CHECK_DEVICE(device) TRY(check_device((device), __func__))

static nvmlReturn_t write_text(char *buffer, unsigned length, const char *text)
{
    if (length <= strlen(text)) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

/* --- the library, and which GPU there is ------------------------------------------------------ */

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    initialised++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    initialised--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    return code == NVML_SUCCESS ? "The operation was successful" : "An error of the stand-in";
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    INSIST_ON(count);
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    *count = 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    INSIST_ON(device);
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (index != 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = &gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    INSIST_ON(name);
    CHECK_DEVICE(device);
    return write_text(name, length, "NVIDIA H100 80GB HBM3");
}

#define UUID_LENGTH 80u

static void uuid_of(nvmlDevice_t device, char uuid[UUID_LENGTH])
{
    if (device == &gpu) {
        strcpy(uuid, GPU_UUID);
        return;
    }
    const struct nvmlComputeInstance_st *compute = device->compute;
    snprintf(uuid, UUID_LENGTH, "MIG-c0ffee00-%04x-5222-8333-%06x%06x", compute->parent->id,
             compute->placement.start, compute->id);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    char found[UUID_LENGTH];

    INSIST_ON(uuid);
    CHECK_DEVICE(device);
    uuid_of(device, found);
    return write_text(uuid, length, found);
}

#ifndef MINIMAL

/* --- the card --------------------------------------------------------------------------------- */

#define CARD_MEGABYTES 81559ull

static bool mig_on;

static const GpuProfile PROFILES[] = {
    {"MIG 1g.10gb", 0, 19, 1, 7, 16, 1, 0, 9984, 7, 1, {{0, 1, 16, 1, 1}}},
    {"MIG 1g.10gb+me", 7, 20, 1, 1, 16, 1, 1, 9984, 7, 1, {{0, 1, 16, 1, 1}}},
    {"MIG 1g.20gb", 9, 15, 1, 4, 26, 1, 0, 20096, 4, 2, {{7, 1, 26, 1, 2}}},
    {"MIG 2g.20gb", 1, 14, 2, 3, 32, 2, 0, 20096, 3, 2, {{0, 1, 16, 2, 1}, {1, 2, 32, 1, 2}}},
    {"MIG 3g.40gb", 2, 9, 3, 2, 60, 3, 0, 40448, 2, 4,
     {{0, 1, 16, 3, 1}, {1, 2, 32, 1, 2}, {2, 3, 60, 1, 4}}},
    {"MIG 4g.40gb", 3, 5, 4, 1, 64, 4, 0, 40448, 1, 4,
     {{0, 1, 16, 4, 1}, {1, 2, 32, 2, 2}, {3, 4, 64, 1, 4}}},
    {"MIG 7g.80gb", 4, 0, 7, 1, 132, 8, 1, 81152, 1, 8,
     {{0, 1, 16, 7, 1}, {1, 2, 32, 3, 2}, {2, 3, 60, 2, 4}, {3, 4, 64, 1, 4}, {4, 7, 132, 1, 8}}},
};

/* Slots as bits. */
static unsigned mask_of(nvmlPlacement_t placement)
{
    return ((1u << placement.size) - 1) << placement.start;
}

/* For functions that take no MIG device. */
static nvmlReturn_t check_gpu(nvmlDevice_t device, const char *function)
{
    TRY(check_device(device, function));
    return device == &gpu ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

#define CHECK_GPU(device) TRY(check_gpu((device), __func__))

/* For functions that take no GPU. */
static nvmlReturn_t check_mig_device(nvmlDevice_t device, const char *function)
{
    TRY(check_device(device, function));
    return device == &gpu ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

#define CHECK_MIG_DEVICE(device) TRY(check_mig_device((device), __func__))

static nvmlReturn_t check_gpu_instance(nvmlGpuInstance_t instance, const char *function)
{
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        if (instance == &instances[i]) {
            return instance->exists ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
        }
    }
    insist(false, function, "this is no handle of a GPU instance");
    return NVML_ERROR_INVALID_ARGUMENT;
}

#define CHECK_GPU_INSTANCE(instance) TRY(check_gpu_instance((instance), __func__))

static nvmlReturn_t check_compute_instance(nvmlComputeInstance_t compute, const char *function)
{
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        for (unsigned j = 0; j < MOST_INSTANCES; j++) {
            if (compute == &instances[i].compute[j]) {
                bool there = instances[i].exists && compute->exists;
                return there ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
            }
        }
    }
    insist(false, function, "this is no handle of a compute instance");
    return NVML_ERROR_INVALID_ARGUMENT;
}

#define CHECK_COMPUTE_INSTANCE(compute) TRY(check_compute_instance((compute), __func__))

/* --- what the card reports of itself ---------------------------------------------------------- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    INSIST_ON(version);
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    return write_text(version, length, "570.0.0");
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char found[UUID_LENGTH];

    INSIST_ON(uuid);
    INSIST_ON(device);
    if (!initialised) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (strcmp(uuid, GPU_UUID) == 0) {
        *device = &gpu;
        return NVML_SUCCESS;
    }
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        for (unsigned j = 0; j < MOST_INSTANCES; j++) {
            struct nvmlComputeInstance_st *compute = &instances[i].compute[j];
            if (!instances[i].exists || !compute->exists) {
                continue;
            }
            uuid_of(&compute->device, found);
            if (strcmp(uuid, found) == 0) {
                *device = &compute->device;
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    INSIST_ON(pci);
    CHECK_GPU(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x1A;
    pci->pciDeviceId = 0x233010DE;
    pci->pciSubSystemId = 0x000010DE;
    strcpy(pci->busIdLegacy, "0000:1A:00.0");
    strcpy(pci->busId, "00000000:1A:00.0");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    INSIST_ON(minor);
    CHECK_GPU(device);
    *minor = 250; /* far from the device files of GPUs that this machine may have */
    return NVML_SUCCESS;
}

static unsigned long long total_of(nvmlDevice_t device)
{
    return (device == &gpu ? CARD_MEGABYTES : device->compute->parent->profile->megabytes) << 20;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    INSIST_ON(memory);
    CHECK_DEVICE(device);
    memory->total = total_of(device);
    memory->used = 13ull << 20;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    INSIST_ON(memory);
    CHECK_DEVICE(device);
    if (memory->version != STRUCT_VERSION(nvmlMemory_v2_t, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    memory->total = total_of(device);
    memory->reserved = 12ull << 20;
    memory->used = 1ull << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    INSIST_ON(major);
    INSIST_ON(minor);
    CHECK_DEVICE(device);
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode)
{
    INSIST_ON(mode);
    CHECK_GPU(device);
    *mode = 0; /* none */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    INSIST_ON(fields);
    CHECK_DEVICE(device);
    for (int i = 0; i < count; i++) {
        bool known = fields[i].fieldId == NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED;
        fields[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        fields[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        fields[i].value.uiVal = known;
    }
    return NVML_SUCCESS;
}

/* --- processes -------------------------------------------------------------------------------- */

/* The process id in an environment variable; 0 without it. */
static unsigned pid_in(const char *variable)
{
    const char *pid = getenv(variable);
    return pid == NULL ? 0 : (unsigned)strtoul(pid, NULL, 10);
}

static unsigned user(void)
{
    return pid_in("STAND_IN_USER");
}

/* A list of one process on the GPU, or of none where `pid` is 0. */
static nvmlReturn_t list_one(nvmlDevice_t device, unsigned pid, unsigned *count,
                             nvmlProcessInfo_t *processes)
{
    unsigned room = *count;
    *count = pid != 0 && device == &gpu ? 1 : 0;
    if (room < *count) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if (*count != 0) {
        INSIST_ON(processes);
        processes[0].pid = pid;
        processes[0].usedGpuMemory = 5ull << 30; /* more than 32 bits hold */
        processes[0].gpuInstanceId = NO_INSTANCE;
        processes[0].computeInstanceId = NO_INSTANCE;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     nvmlProcessInfo_t *processes)
{
    INSIST_ON(count);
    CHECK_DEVICE(device);
    return list_one(device, user(), count, processes);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                      nvmlProcessInfo_t *processes)
{
    (void)processes;
    INSIST_ON(count);
    CHECK_DEVICE(device);
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                        nvmlProcessInfo_t *processes)
{
    INSIST_ON(count);
    CHECK_DEVICE(device);
    return list_one(device, pid_in("STAND_IN_CLIENT"), count, processes);
}

/* --- compute mode ----------------------------------------------------------------------------- */

/* With MIG on, each MIG device has a mode and the GPU has none. */
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    INSIST_ON(mode);
    CHECK_DEVICE(device);
    if (mig_on && device == &gpu) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *mode = device->mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    CHECK_DEVICE(device);
    if (mode >= NVML_COMPUTEMODE_COUNT) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if ((mig_on && device == &gpu) || mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    device->mode = mode;
    return NVML_SUCCESS;
}

/* --- MIG mode --------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    INSIST_ON(current);
    INSIST_ON(pending);
    CHECK_GPU(device);
    *current = mig_on;
    *pending = mig_on;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *status)
{
    INSIST_ON(status);
    CHECK_GPU(device);
    if (mode > 1) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (user() != 0) {
        *status = NVML_ERROR_IN_USE;
        return NVML_SUCCESS;
    }
    mig_on = mode == 1;
    gpu.mode = NVML_COMPUTEMODE_DEFAULT;
    if (!mig_on) {
        memset(instances, 0, sizeof instances);
    }
    *status = NVML_SUCCESS;
    return NVML_SUCCESS;
}

/* --- GPU instances ---------------------------------------------------------------------------- */

static const GpuProfile *profile_of_id(unsigned id)
{
    for (unsigned i = 0; i < LENGTH(PROFILES); i++) {
        if (PROFILES[i].id == id) {
            return &PROFILES[i];
        }
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned kind,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    INSIST_ON(info);
    CHECK_GPU(device);
    if (info->version != STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    for (unsigned i = 0; i < LENGTH(PROFILES); i++) {
        const GpuProfile *profile = &PROFILES[i];
        if (profile->kind != kind) {
            continue;
        }
        info->id = profile->id;
        info->isP2pSupported = 0;
        info->sliceCount = profile->slices;
        info->instanceCount = profile->count;
        info->multiprocessorCount = profile->multiprocessors;
        info->copyEngineCount = profile->copy_engines;
        info->decoderCount = profile->slices;
        info->encoderCount = 0;
        info->jpegCount = profile->slices;
        info->ofaCount = profile->ofa;
        info->memorySizeMB = profile->megabytes;
        strcpy(info->name, profile->name);
        return NVML_SUCCESS;
    }
    return kind < NVML_GPU_INSTANCE_PROFILE_COUNT ? NVML_ERROR_NOT_SUPPORTED
                                                  : NVML_ERROR_INVALID_ARGUMENT;
}

/* `placements` may be NULL for those who want the count alone. */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                           nvmlPlacement_t *placements,
                                                           unsigned *count)
{
    INSIST_ON(count);
    CHECK_GPU(device);
    const GpuProfile *profile = profile_of_id(id);
    if (profile == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; placements != NULL && i < profile->places; i++) {
        placements[i].start = i * profile->size;
        placements[i].size = profile->size;
    }
    *count = profile->places;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *found,
                                       unsigned *count)
{
    INSIST_ON(found);
    INSIST_ON(count);
    CHECK_GPU(device);
    if (!mig_on) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (profile_of_id(id) == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = 0;
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        if (instances[i].exists && instances[i].profile->id == id) {
            found[(*count)++] = &instances[i];
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id,
                                          nvmlGpuInstance_t *found)
{
    INSIST_ON(found);
    CHECK_GPU(device);
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        if (instances[i].exists && instances[i].id == id) {
            *found = &instances[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    INSIST_ON(info);
    CHECK_GPU_INSTANCE(instance);
    info->device = &gpu;
    info->id = instance->id;
    info->profileId = instance->profile->id;
    info->placement = instance->placement;
    return NVML_SUCCESS;
}

/* A place in `instances` for one more of `profile`; NULL where the card has no room for it. */
static struct nvmlGpuInstance_st *room_for(const GpuProfile *profile, nvmlPlacement_t placement)
{
    struct nvmlGpuInstance_st *room = NULL;
    unsigned alike = 0;

    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        if (!instances[i].exists) {
            room = room == NULL ? &instances[i] : room;
            continue;
        }
        alike += instances[i].profile == profile;
        if (mask_of(instances[i].placement) & mask_of(placement)) {
            return NULL;
        }
    }
    return alike < profile->count ? room : NULL;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
                                                      const nvmlPlacement_t *placement,
                                                      nvmlGpuInstance_t *made)
{
    INSIST_ON(placement);
    INSIST_ON(made);
    CHECK_GPU(device);
    if (!mig_on) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    const GpuProfile *profile = profile_of_id(id);
    if (profile == NULL || placement->size != profile->size ||
        placement->start % profile->size != 0 ||
        placement->start / profile->size >= profile->places) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    struct nvmlGpuInstance_st *instance = room_for(profile, *placement);
    if (instance == NULL) {
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    memset(instance, 0, sizeof *instance);
    instance->exists = true;
    instance->id = (unsigned)(instance - instances) + 1; /* ids come again, as a card's do */
    instance->profile = profile;
    instance->placement = *placement;
    *made = instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    CHECK_GPU_INSTANCE(instance);
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        if (instance->compute[i].exists) {
            return NVML_ERROR_IN_USE;
        }
    }
    instance->exists = false;
    return NVML_SUCCESS;
}

/* --- compute instances ------------------------------------------------------------------------ */

/* NULL where instances of that kind offer no such profile. */
static const ComputeProfile *compute_profile(nvmlGpuInstance_t instance, unsigned id)
{
    const ComputeProfile *profiles = instance->profile->compute;
    for (unsigned i = 0; i < LENGTH(instance->profile->compute); i++) {
        if (profiles[i].count != 0 && profiles[i].id == id) {
            return &profiles[i];
        }
    }
    return NULL;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t instance, unsigned kind, unsigned engines,
    nvmlComputeInstanceProfileInfo_v2_t *info)
{
    INSIST_ON(info);
    CHECK_GPU_INSTANCE(instance);
    if (info->version != STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2)) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (kind >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT ||
        engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const ComputeProfile *profile = compute_profile(instance, kind);
    if (profile == NULL) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    info->id = profile->id;
    info->sliceCount = profile->slices;
    info->instanceCount = profile->count;
    info->multiprocessorCount = profile->multiprocessors;
    info->sharedCopyEngineCount = instance->profile->copy_engines;
    info->sharedDecoderCount = instance->profile->slices;
    info->sharedEncoderCount = 0;
    info->sharedJpegCount = instance->profile->slices;
    info->sharedOfaCount = instance->profile->ofa;
    snprintf(info->name, sizeof info->name, "MIG %uc", profile->slices);
    return NVML_SUCCESS;
}

/* `placements` may be NULL for those who want the count alone. */
nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance,
                                                                 unsigned id,
                                                                 nvmlPlacement_t *placements,
                                                                 unsigned *count)
{
    INSIST_ON(count);
    CHECK_GPU_INSTANCE(instance);
    const ComputeProfile *profile = compute_profile(instance, id);
    if (profile == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; placements != NULL && i < profile->count; i++) {
        placements[i].start = i * profile->span;
        placements[i].size = profile->span;
    }
    *count = profile->count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id,
                                                nvmlComputeInstance_t *found, unsigned *count)
{
    INSIST_ON(found);
    INSIST_ON(count);
    CHECK_GPU_INSTANCE(instance);
    if (compute_profile(instance, id) == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = 0;
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        if (instance->compute[i].exists && instance->compute[i].profile->id == id) {
            found[(*count)++] = &instance->compute[i];
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                   nvmlComputeInstance_t *found)
{
    INSIST_ON(found);
    CHECK_GPU_INSTANCE(instance);
    if (id >= MOST_INSTANCES || !instance->compute[id].exists) {
        return NVML_ERROR_NOT_FOUND;
    }
    *found = &instance->compute[id];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute,
                                           nvmlComputeInstanceInfo_t *info)
{
    INSIST_ON(info);
    CHECK_COMPUTE_INSTANCE(compute);
    info->device = &gpu;
    info->gpuInstance = compute->parent;
    info->id = compute->id;
    info->profileId = compute->profile->id;
    info->placement = compute->placement;
    return NVML_SUCCESS;
}

static void make_compute(nvmlGpuInstance_t instance, unsigned id, const ComputeProfile *profile,
                         nvmlPlacement_t placement)
{
    struct nvmlComputeInstance_st *compute = &instance->compute[id];
    compute->exists = true;
    compute->id = id;
    compute->profile = profile;
    compute->placement = placement;
    compute->parent = instance;
    compute->device.compute = compute;
    compute->device.mode = NVML_COMPUTEMODE_DEFAULT;
}

/* At the first place that is free. */
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id,
                                                  nvmlComputeInstance_t *made)
{
    INSIST_ON(made);
    CHECK_GPU_INSTANCE(instance);
    const ComputeProfile *profile = compute_profile(instance, id);
    if (profile == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    unsigned taken = 0;
    unsigned number = MOST_INSTANCES; /* the first that is free */
    for (unsigned i = MOST_INSTANCES; i-- > 0;) {
        if (instance->compute[i].exists) {
            taken |= mask_of(instance->compute[i].placement);
        } else {
            number = i;
        }
    }
    for (unsigned i = 0; number < MOST_INSTANCES && i < profile->count; i++) {
        nvmlPlacement_t place = {i * profile->span, profile->span};
        if ((mask_of(place) & taken) == 0) {
            make_compute(instance, number, profile, place);
            *made = &instance->compute[number];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    CHECK_COMPUTE_INSTANCE(compute);
    compute->exists = false;
    return NVML_SUCCESS;
}

/* --- MIG devices ------------------------------------------------------------------------------ */

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    INSIST_ON(count);
    CHECK_GPU(device);
    *count = mig_on ? MOST_INSTANCES : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                 nvmlDevice_t *found)
{
    INSIST_ON(found);
    CHECK_GPU(device);
    for (unsigned i = 0; i < MOST_INSTANCES; i++) {
        for (unsigned j = 0; j < MOST_INSTANCES; j++) {
            struct nvmlComputeInstance_st *compute = &instances[i].compute[j];
            if (instances[i].exists && compute->exists && index-- == 0) {
                *found = &compute->device;
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    INSIST_ON(id);
    CHECK_MIG_DEVICE(device);
    *id = device->compute->parent->id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    INSIST_ON(id);
    CHECK_MIG_DEVICE(device);
    *id = device->compute->id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    INSIST_ON(attributes);
    CHECK_MIG_DEVICE(device);
    const GpuProfile *whole = device->compute->parent->profile;
    attributes->multiprocessorCount = device->compute->profile->multiprocessors;
    attributes->sharedCopyEngineCount = whole->copy_engines;
    attributes->sharedDecoderCount = whole->slices;
    attributes->sharedEncoderCount = 0;
    attributes->sharedJpegCount = whole->slices;
    attributes->sharedOfaCount = whole->ofa;
    attributes->gpuInstanceSliceCount = whole->slices;
    attributes->computeInstanceSliceCount = device->compute->profile->slices;
    attributes->memorySizeMB = whole->megabytes;
    return NVML_SUCCESS;
}

#endif
