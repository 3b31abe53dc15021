"""How busy a GPU is, by NVIDIA's own library, which stands beside its driver."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch

LIBRARY = "libnvidia-ml.so.1"


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Busy:
    """Share of the last moments (a sixth of a second to one) in which the GPU had anything to do."""

    def __init__(self, ask: Callable[[], float]) -> None:
        self.share = ask

    @staticmethod
    def unknown() -> Busy:
        """Of no GPU, or of one that nothing is known of: NaN."""
        return Busy(lambda: math.nan)

    @staticmethod
    def of(device: int) -> Busy:
        """Of torch's GPU of this number; unknown without the library, or where it does not tell."""
        # By the GPU's own name: its number is another one here where a process sees only some of a machine's.
        return Busy.named(f"GPU-{torch.cuda.get_device_properties(device).uuid}")

    @staticmethod
    def named(name: str, library: str = LIBRARY) -> Busy:
        """Of the GPU with this UUID."""
        try:
            nvml = ctypes.CDLL(library)
        except OSError:
            return Busy.unknown()
        handle, rates = ctypes.c_void_p(), _Rates()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)):
            return Busy.unknown()

        def ask() -> float:
            failed = nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates))
            return math.nan if failed else rates.gpu / 100

        return Busy(ask)
