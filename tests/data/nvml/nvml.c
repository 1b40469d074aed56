/* The part of NVML's C ABI that an acceptance uses (NVML API reference), over two GPUs that exist only here.
 * FAKE_NVML_INIT: what nvmlInitWithFlags returns; FAKE_NVML_LOST=1: the second GPU has fallen off the bus.
 * -DOLD: as drivers before 535 have it, without clocks event reasons. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };
enum { CLOCK_SM = 1, CLOCK_MEM = 2 };
typedef struct gpu { unsigned index, asked; } *device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
static struct gpu gpus[2] = {{0, 0}, {1, 0}};

static int text(char *to, unsigned size, const char *from) { snprintf(to, size, "%s", from); return SUCCESS; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *wanted = getenv("FAKE_NVML_INIT");
    return wanted ? atoi(wanted) : SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int result) {
    return result == 9 ? "Driver Not Loaded" : result == GPU_IS_LOST ? "GPU is lost" : "Not Supported";
}
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(to, size, "580.95.05"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    if (index > 1) return INVALID_ARGUMENT;
    if (index == 1 && getenv("FAKE_NVML_LOST")) return GPU_IS_LOST;
    *found = &gpus[index];
    return SUCCESS;
}
int nvmlDeviceGetName(device gpu, char *to, unsigned size) {
    (void)gpu;
    return text(to, size, "NVIDIA RTX PRO 6000 Blackwell");
}
int nvmlDeviceGetUUID(device gpu, char *to, unsigned size) {
    return text(to, size, gpu->index ? "GPU-1111" : "GPU-0000");
}
int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) {
    (void)gpu;
    *major = 12, *minor = 0;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device gpu, memory *info) {
    info->total = 96ull << 30, info->used = gpu->index ? 3ull << 30 : 1ull << 20;
    info->free = info->total - info->used;
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(device gpu, unsigned *mw) { (void)gpu; *mw = 600000; return SUCCESS; }
int nvmlDeviceGetPowerUsage(device gpu, unsigned *mw) { *mw = 400000 + 1000 * gpu->index; return SUCCESS; }
int nvmlDeviceGetTotalEnergyConsumption(device gpu, unsigned long long *mj) {
    if (gpu->index) return NOT_SUPPORTED;
    *mj = 5000000000ull + 250000ull * ++gpu->asked; /* more than 32 bits hold */
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(device gpu, utilization *rates) {
    (void)gpu;
    rates->gpu = 97, rates->memory = 40;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(device gpu, unsigned type, unsigned *mhz) {
    *mhz = type == CLOCK_SM ? 2400 - 600 * gpu->index : type == CLOCK_MEM ? 14001 : 0;
    return *mhz ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *celsius) {
    *celsius = 61 + 30 * gpu->index;
    return sensor ? INVALID_ARGUMENT : SUCCESS;
}
static int reasons(device gpu, unsigned long long *bits) {
    *bits = gpu->index ? 0x40 | 0x4 : 0x1; /* the second is hot and capped, the first has nothing to say */
    return SUCCESS;
}
#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *bits) { return reasons(gpu, bits); }
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *bits) { return reasons(gpu, bits); }
