"""A small CUDA program: takes a context on device 0 and allocates what it is asked to.

It calls the driver's library itself, so nothing of CUDA has to be installed but that. Lines come
in (`allocate BYTES`, `free ADDRESS`, `memory`), and a line of JSON goes out for each, after a first
one about how it began. Codes are CUDA's, with their names; it ends with its input.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import partial
from typing import Any

SUCCESS = 0
OUT_OF_MEMORY = 2

_DEVICE = c_int  # CUdevice
_CONTEXT = c_void_p  # CUcontext
_ADDRESS = c_uint64  # CUdeviceptr, on every 64-bit platform
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(_DEVICE), c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), _DEVICE),
    "cuDevicePrimaryCtxRetain": (POINTER(_CONTEXT), _DEVICE),
    "cuCtxSetCurrent": (_CONTEXT,),
    "cuMemAlloc_v2": (POINTER(_ADDRESS), c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
}


class Failed(Exception):
    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(call)
        self.answer = {"call": call, "code": code, "name": name}


class Cuda:
    """The calls that are made here; each raises Failed."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != SUCCESS:
            raise Failed(name, code, self._name_of(code))

    def _name_of(self, code: int) -> str:
        name = c_char_p()
        self._library.cuGetErrorName(code, byref(name))
        return (name.value or b"").decode()

    def begin(self) -> dict[str, Any]:
        version, device, total, context = c_int(), _DEVICE(), c_size_t(), _CONTEXT()
        self("cuInit", 0)
        self("cuDriverGetVersion", byref(version))
        self("cuDeviceGet", byref(device), 0)
        self("cuDeviceTotalMem_v2", byref(total), device)
        self("cuDevicePrimaryCtxRetain", byref(context), device)
        self("cuCtxSetCurrent", context)
        return {"version": version.value, "total": total.value}

    def allocate(self, size: int) -> dict[str, Any]:
        address = _ADDRESS()
        self("cuMemAlloc_v2", byref(address), size)
        return {"address": address.value}

    def free(self, address: int) -> dict[str, Any]:
        self("cuMemFree_v2", address)
        return {}

    def memory(self) -> dict[str, Any]:
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return {"free": free.value, "total": total.value}


def main() -> int:
    cuda = Cuda()
    if not _answer(cuda.begin):
        return 1
    for line in sys.stdin:
        match line.split():
            case ["allocate", size]:
                _answer(partial(cuda.allocate, int(size)))
            case ["free", address]:
                _answer(partial(cuda.free, int(address)))
            case ["memory"]:
                _answer(cuda.memory)
            case words:
                raise ValueError(f"unknown command {words}")
    return 0


def _answer(call: Callable[[], dict[str, Any]]) -> bool:
    try:
        answer = {"code": SUCCESS, "pid": os.getpid(), **call()}
    except Failed as failed:
        answer = failed.answer
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()
    return bool(answer["code"] == SUCCESS)


if __name__ == "__main__":
    sys.exit(main())
