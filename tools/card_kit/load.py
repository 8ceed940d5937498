"""A known load on a GPU, by CUDA's driver library alone.

    python load.py spin 10       # multiplies on every multiprocessor for ten seconds
    python load.py copy 10       # copies device memory for ten seconds
    python load.py hold 1024     # allocates so many MiB, says what came of it, and holds it

Prints one line of JSON. `hold` ends when its standard input is closed. CUDA_VISIBLE_DEVICES and the
variables of MPS choose the device.
"""

from __future__ import annotations

import json
import sys
import time
from ctypes import CDLL, addressof, byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MIB = 1 << 20
_ROUNDS = 4_000_000  # of the kernel's loop in one launch: some 100 ms

# Eight independent chains of multiply-adds, so that the FP32 pipe is what is busy.
_CHAINS = "\n".join(f"  fma.rn.f32 %f{n}, %f{n}, %f9, %f9;" for n in range(1, 9))
_START = "\n".join(f"  mov.f32 %f{n}, 0f3F80000{n};" for n in range(1, 9))
_SUM = "\n".join(f"  add.f32 %f1, %f1, %f{n};" for n in range(2, 9))
PTX = f"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry spin(.param .u64 target, .param .u64 rounds)
{{
  .reg .pred %p1;
  .reg .f32 %f<10>;
  .reg .b64 %r<5>;
  ld.param.u64 %r1, [target];
  ld.param.u64 %r2, [rounds];
  mov.u64 %r3, 0;
  mov.f32 %f9, 0f3F7FFFFF;
{_START}
again:
{_CHAINS}
  add.u64 %r3, %r3, 1;
  setp.lt.u64 %p1, %r3, %r2;
  @%p1 bra again;
{_SUM}
  cvta.to.global.u64 %r4, %r1;
  st.global.f32 [%r4], %f1;
  ret;
}}
"""


class CudaError(Exception):
    """A call that CUDA refused, with its code."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: CUDA error {code}")
        self.code = code


class Cuda:
    """The first visible device, with its primary context current."""

    def __init__(self) -> None:
        self._library = CDLL("libcuda.so.1")
        device, context, count = c_int(), c_void_p(), c_int()
        self("cuInit", 0)
        self("cuDeviceGet", byref(device), 0)
        self("cuDeviceGetAttribute", byref(count), _MULTIPROCESSORS, device)
        self("cuDevicePrimaryCtxRetain", byref(context), device)
        self("cuCtxSetCurrent", context)
        self.multiprocessors = count.value

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def allocate(self, size: int) -> c_uint64:
        """Device memory, in bytes; freed with the process."""
        address = c_uint64()
        self("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address

    def spin(self, seconds: float) -> int:
        """Keep every multiprocessor busy; how many launches that took."""
        module, kernel = c_void_p(), c_void_p()
        self("cuModuleLoadData", byref(module), PTX.encode())
        self("cuModuleGetFunction", byref(kernel), module, b"spin")
        values = (self.allocate(256), c_uint64(_ROUNDS))
        parameters = (c_void_p * 2)(*map(addressof, values))
        blocks, until, launches = 2 * self.multiprocessors, time.monotonic() + seconds, 0
        while time.monotonic() < until:
            self("cuLaunchKernel", kernel, blocks, 1, 1, 1024, 1, 1, 0, None, parameters, None)
            self("cuCtxSynchronize")
            launches += 1
        return launches

    def copy(self, seconds: float) -> int:
        """Copy device memory to and fro; the bytes read and written in a second."""
        size = 1024 * _MIB
        first, second = self.allocate(size), self.allocate(size)
        began, copies = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            for _ in range(16):
                self("cuMemcpyDtoD_v2", second, first, c_size_t(size))
            self("cuCtxSynchronize")
            copies += 16
        return int(2 * copies * size / (time.monotonic() - began))


def main() -> int:
    """Do what the arguments say; 1 where CUDA refuses it, with its code in the line."""
    what, amount = sys.argv[1], float(sys.argv[2])
    said: dict[str, Any] = {"what": what}
    try:
        cuda = Cuda()
        said["multiprocessors"] = cuda.multiprocessors
        if what == "spin":
            said["launches"] = cuda.spin(amount)
        elif what == "copy":
            said["bytesPerSecond"] = cuda.copy(amount)
        else:
            cuda.allocate(int(amount) * _MIB)
            said["allocated"] = int(amount)
    except (CudaError, OSError) as error:
        print(json.dumps({**said, "error": str(error)}), flush=True)
        return 1
    print(json.dumps(said), flush=True)
    if what == "hold":
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
