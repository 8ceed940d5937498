import json

from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.nvml_library import SimulatedLibrary, installed
from tests.rig import open_driver
from tools.card_kit.compare import compared
from tools.card_kit.recorder import Recorder

XML = """<nvidia_smi_log><gpu><uuid>GPU-a</uuid><fan_speed>N/A</fan_speed>
<temperature><gpu_temp>35 C</gpu_temp></temperature><fb_memory_usage><total>81559 MiB</total>
</fb_memory_usage></gpu></nvidia_smi_log>"""
METRICS = (
    'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 41\nDCGM_FI_DEV_FB_TOTAL{UUID="GPU-a"} 81559\n'
)


async def test_calls_are_recorded_as_they_were() -> None:
    with SimulatedNode("h100-80gb:2") as node:
        recorder = Recorder(SimulatedLibrary(node))
        with installed(recorder):
            async with open_driver() as driver:
                gpus = (await driver.observe()).gpus
    recorded = recorder.as_json()
    assert recorded["nvmlDeviceGetCount_v2"]["answers"] == [{"given": [0], "result": 0, "out": [2]}]
    assert recorded["nvmlDeviceGetUUID"]["calls"] >= 2
    assert gpus[0].uuid not in json.dumps(recorded)
    assert str(gpus[0].memory) in json.dumps(recorded)


def test_fields_are_compared_with_nvidia_smi() -> None:
    assert [(pair["metric"], pair["agree"]) for pair in compared(METRICS, XML)] == [
        ("DCGM_FI_DEV_GPU_TEMP", False),
        ("DCGM_FI_DEV_FB_TOTAL", True),
    ]
