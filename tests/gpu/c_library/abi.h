/*
 * What crosses the border between a program and libnvidia-ml.so.1, as the public nvml.h lays it
 * out: codes, handles and structures. Only what nvml.c needs; written anew, not NVIDIA's file.
 */

#ifndef ABI_H
#define ABI_H

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
} nvmlReturn_t;

/* A GPU or a MIG device. */
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;

/* A versioned structure says its size and its version in its first field. */
#define STRUCT_VERSION(type, number) ((unsigned)(sizeof(type) | ((number) << 24)))

typedef enum {
    NVML_COMPUTEMODE_DEFAULT = 0,
    NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1,
    NVML_COMPUTEMODE_PROHIBITED = 2,
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
    NVML_COMPUTEMODE_COUNT
} nvmlComputeMode_t;

/* --- a device --------------------------------------------------------------------------------- */

typedef struct {
    char busIdLegacy[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pciDeviceId;
    unsigned pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

#define NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED 184
#define NVML_VALUE_TYPE_UNSIGNED_INT 1

typedef struct {
    unsigned fieldId;
    unsigned scopeId;
    long long timestamp;
    long long latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        int siVal;
        unsigned uiVal;
        unsigned long ulVal;
        unsigned long long ullVal;
        long long sllVal;
        unsigned short usVal;
    } value;
} nvmlFieldValue_t;

#define NO_INSTANCE 0xFFFFFFFFu /* the ids of a process outside MIG */

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId;
    unsigned computeInstanceId;
} nvmlProcessInfo_t;

/* --- MIG -------------------------------------------------------------------------------------- */

#define NVML_GPU_INSTANCE_PROFILE_COUNT 18u
#define NVML_COMPUTE_INSTANCE_PROFILE_COUNT 9u
#define NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT 1u

/* Of a GPU instance in memory slices, of a compute instance in compute slices. */
typedef struct {
    unsigned start;
    unsigned size;
} nvmlPlacement_t;

typedef struct {
    unsigned version;
    unsigned id;
    unsigned isP2pSupported;
    unsigned sliceCount;
    unsigned instanceCount;
    unsigned multiprocessorCount;
    unsigned copyEngineCount;
    unsigned decoderCount;
    unsigned encoderCount;
    unsigned jpegCount;
    unsigned ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    nvmlDevice_t device;
    unsigned id;
    unsigned profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned version;
    unsigned id;
    unsigned sliceCount;
    unsigned instanceCount;
    unsigned multiprocessorCount;
    unsigned sharedCopyEngineCount;
    unsigned sharedDecoderCount;
    unsigned sharedEncoderCount;
    unsigned sharedJpegCount;
    unsigned sharedOfaCount;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id;
    unsigned profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned multiprocessorCount;
    unsigned sharedCopyEngineCount;
    unsigned sharedDecoderCount;
    unsigned sharedEncoderCount;
    unsigned sharedJpegCount;
    unsigned sharedOfaCount;
    unsigned gpuInstanceSliceCount;
    unsigned computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

#endif
