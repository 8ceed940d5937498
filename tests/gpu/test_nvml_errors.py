"""Every code the driver can give has a sentence, and becomes the right kind of error."""

from __future__ import annotations

import pynvml

from nodeagent.errors import DriverError, DriverUnavailable, GpuInUse, GpuLost
from nodeagent.gpu.nvml_errors import about, driver_error, explain, unavailable

KNOWN = [
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
]


def test_pynvml_still_has_the_codes_that_were_written_for() -> None:
    """A newer pynvml with more codes is noticed here."""
    assert sorted(KNOWN) == [*range(1, 31), 999]


def test_every_known_code_has_a_name_and_a_sentence() -> None:
    """The name is the one pynvml's class has; the sentence is the code's own."""
    for code in KNOWN:
        found = explain(code)
        assert type(pynvml.NVMLError(code)).__name__ == f"NVMLError_{found.name}"
        assert len(found.meaning.split()) >= 4
        assert "newer than this program" not in found.meaning


def test_an_unknown_code_is_reported_with_its_number() -> None:
    """A driver newer than this program still gets an honest sentence."""
    for code in (31, 77, 1000, -1):
        error = driver_error(code, "nvmlDeviceGetUUID")
        assert str(code) in str(error)
        assert error.code == code
        assert "nvml.h" in error.remedy


def test_codes_become_the_kind_of_error_that_the_layers_above_act_on() -> None:
    """Lost, in use and unavailable are kinds of their own; the rest is a plain DriverError."""
    kinds: dict[int, type[DriverError]] = dict.fromkeys(KNOWN, DriverError)
    kinds |= dict.fromkeys((1, 9, 12, 18), DriverUnavailable)
    kinds |= {15: GpuLost, 16: GpuLost, 19: GpuInUse}
    assert {code: type(driver_error(code, "nvmlDeviceGetUUID")) for code in KNOWN} == kinds


def test_a_code_says_more_where_the_call_is_known() -> None:
    """The sentence fits the call, and the remedy helps."""
    for code, call, words in (
        (23, "nvmlDeviceCreateGpuInstanceWithPlacement", "no free room"),
        (19, "nvmlDeviceCreateGpuInstanceWithPlacement", "opened the GPU before it was divided"),
        (19, "nvmlGpuInstanceDestroy", "still has compute instances"),
        (19, "nvmlComputeInstanceDestroy", "a process still uses"),
        (16, "nvmlDeviceSetMigMode", "only with a reset"),
        (4, "nvmlDeviceSetMigMode", "root"),
        (3, "nvmlDeviceSetMigMode", "has no MIG"),
        (4, "nvmlDeviceSetComputeMode", "root"),
        (18, "nvmlInit", "different versions"),
        (9, "nvmlInit", "kernel driver is not loaded"),
        (12, "nvmlInit", "libnvidia-ml.so.1"),
    ):
        error = driver_error(code, call)
        assert words in error.message
        assert call in error.message
        assert error.remedy


def test_no_words_of_the_library_are_needed() -> None:
    """pynvml's own text of code 19 would call into the library, which may be gone."""
    before = dict(pynvml.NVMLError._errcode_to_string)
    str(driver_error(19, "nvmlGpuInstanceDestroy"))
    assert before == pynvml.NVMLError._errcode_to_string


def test_errors_keep_their_kind_with_a_gpu_in_front() -> None:
    """The GPU is named in front, code and remedy stay."""
    error = about("GPU 3", driver_error(19, "nvmlGpuInstanceDestroy"))
    assert isinstance(error, GpuInUse)
    assert error.message.startswith("GPU 3: ")
    assert error.code == 19
    assert error.remedy


def test_any_error_can_mean_that_nvml_is_unavailable() -> None:
    """At start, NO_PERMISSION or a hang means that there is nothing to work with."""
    error = unavailable(driver_error(4, "nvmlInit"))
    assert isinstance(error, DriverUnavailable)
    assert (error.code, error.call) == (4, "nvmlInit")
