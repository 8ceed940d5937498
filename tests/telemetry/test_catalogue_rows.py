import asyncio
import re

import pynvml
import pytest

from nodeagent.metrics.catalogue import Field, Level, catalogue
from nodeagent.metrics.sources import FieldValue, Gpm, GpmLink, LinkCall, Number, PortCounter
from nodeagent.telemetry.fields import as_text
from tests.telemetry import catalogue_rig

ROWS = catalogue().fields

# Rows of calls, in the units that they are exported in. A set: it differs between the boards.
BY_HAND: dict[int, Number | set[Number]] = {
    4: {1, 2}, 5: 13020, 52: 0, 55: 0, 63: {7 << 16 | 5, 9 << 16, 10 << 16, 12 << 16},
    64: {0, 2}, 65: 0, 66: 1, 67: 0, 69: 0, 74: 0, 83: 4711, 84: 1,
    90: {131072, 256, 262144}, 92: 5, 94: {0, 1},
    100: 1755, 101: 2600, 102: 1410, 110: 1700, 111: 2500, 112: 0x44, 120: 1,
    140: 83, 150: 71, 151: 105, 152: 88, 153: 17, 158: 91, 159: 96,
    155: 251.5, 156: 123_456_789_012, 157: 251.5, 160: 650, 161: 200.25, 162: 701, 163: 699,
    164: 640.5, 170: 2, 171: 9, 173: 5, 174: 0x300, 175: 2, 190: 2, 191: 37, 202: 7,
    203: 81, 204: 42, 206: 13, 207: 27, 236: 16, 237: 3, 238: 8, 252: 0, 254: 0,
    346: 1, 385: 601, 386: 33, 387: 4, 388: 2, 389: 1, 390: 3, 500: 0, 526: 1,
    573: 3, 574: 200, 575: 0, 576: 2, 577: 255, 1507: 1,
    200: 4000, 201: 1500,  # 8,000,000 and 3,000,000 bytes in 2 s, in KB/s
    449: 80_000, 843: 50_000, 897: 30_000,  # 100 and 60 GB(KiB) in 2 s, in thousand KiB/s
    1216: 1e-5, 1218: 3e-7,  # 0x105: 1 and 10^-5; 0x307: 3 and 10^-7
    6: 1, 450: 74, 230: 74,
}  # fmt: skip
# By board, as published or assumed by the simulator: highest clocks, PCIe, memory.
OF_THE_BOARD = {113, 114, 115, 235, 93, 250, 251, 253}
PLACES = {
    314: (0, "volatile"), 316: (1, "volatile"), 318: (2, "volatile"), 320: (3, "volatile"),
    322: (4, "volatile"), 334: (5, "volatile"), 336: (6, "volatile"), 342: (7, "volatile"),
    324: (0, "aggregate"), 326: (1, "aggregate"), 328: (2, "aggregate"), 330: (3, "aggregate"),
    332: (4, "aggregate"), 338: (5, "aggregate"), 340: (6, "aggregate"), 344: (7, "aggregate"),
}  # fmt: skip
LINK_COUNTERS = {
    "NVML_NVLINK_ERROR_DL_CRC_FLIT": 100, "NVML_NVLINK_ERROR_DL_CRC_DATA": 200,
    "NVML_NVLINK_ERROR_DL_REPLAY": 300, "NVML_NVLINK_ERROR_DL_RECOVERY": 400,
}  # fmt: skip
PARTS: dict[int, Number] = {
    250: 81152, 252: 1085, 251: 81152 - 1085, 253: 0, 254: 1085 / 81152,
    90: 131071, 92: 5, 93: 131071 - 6,
    203: 1.5, 204: 10.5, 206: 168.0, 207: 34.0, 230: 13,
    315: 60, 317: 61, 321: 63, 323: 64, 335: 65, 337: 66, 343: 67,
}  # fmt: skip


@pytest.fixture(scope="module")
def sampled() -> catalogue_rig.Sampled:
    found = catalogue_rig.Sampled()

    async def sample() -> None:
        for boards in catalogue_rig.BOARDS:
            await catalogue_rig.sample_board(boards, found)
        await catalogue_rig.sample_divided(found)
        parts = found.part
        events = catalogue_rig.Sampled()
        await catalogue_rig.sample_events(events)
        for number, values in events.whole.items():
            found.whole[number] |= values
        for number, values in events.part.items():
            parts[number] |= values

    asyncio.run(sample())
    return found


def test_nothing_failed(sampled: catalogue_rig.Sampled) -> None:
    assert sampled.problems == []


def test_the_rows_of_a_whole_gpu(sampled: catalogue_rig.Sampled) -> None:
    wrong = {row.name: found for row in ROWS if (found := _wrong_of_gpu(row, sampled))}
    assert wrong == {}


def test_the_rows_of_an_instance(sampled: catalogue_rig.Sampled) -> None:
    wrong = {}
    for row in ROWS:
        if row.part is not None:
            expected = PARTS[row.id] if row.id in PARTS else _of_gpm(row)
            found = list(sampled.part[row.id])
            if found != [pytest.approx(expected)]:
                wrong[row.name] = f"{found} instead of {expected}"
    assert wrong == {}


def _wrong_of_gpu(row: Field, sampled: catalogue_rig.Sampled) -> str:
    """What is wrong with the values of a row; empty when nothing is."""
    if row.level is Level.LINK:
        found = {link: sampled.links[row.id, link] for link in range(catalogue_rig.LINKS)}
        of_links = {link: {_of_link(row, link)} for link in range(catalogue_rig.LINKS)}
        return "" if found == of_links else f"{found} instead of {of_links}"
    values = sampled.whole[row.id]
    if not values:
        return "no board reported it"
    if row.id in OF_THE_BOARD:
        return "" if min(values) > 0 else f"{values}"
    expected = _expected(row)
    wanted = sorted(expected if isinstance(expected, set) else {expected})
    return "" if sorted(values) == pytest.approx(wanted) else f"{values} instead of {wanted}"


def _expected(row: Field) -> Number | set[Number]:
    if row.id in BY_HAND:
        return BY_HAND[row.id]
    if row.id in PLACES or row.id - 1 in PLACES:
        corrected = row.id in PLACES
        place, since = PLACES[row.id if corrected else row.id - 1]
        return (20 if corrected else 40) + place + (100 if since == "aggregate" else 0)
    link = re.search(r"_L(\d+)(?:_|$)", row.name)
    if "_BANDWIDTH_L" in row.name and row.name.startswith("DCGM_FI_DEV") and link:
        return _rate(row.name, int(link[1]))
    match row.whole:
        case Gpm():
            return _of_gpm(row)
        case LinkCall(_, counter, number):
            assert isinstance(number, int)
            return LINK_COUNTERS[counter] + number
        case FieldValue(number, _, _):
            return catalogue_rig.field_raw(number)
        case other:
            raise AssertionError(f"no expected value for {row.id} {row.name}: {other}")


def _of_link(row: Field, link: int) -> Number:
    match row.whole:
        case FieldValue(number, _, _):
            return catalogue_rig.field_raw(number, link)
        case LinkCall(_, counter, _):
            return LINK_COUNTERS[counter] + link
        case PortCounter(counter):
            return int(getattr(pynvml, counter)) * 100 + link
        case GpmLink(first, step, _):
            return (first + step * link + 0.5) * catalogue_rig.MIB
        case _:
            return _rate(row.name, link)


def _rate(name: str, link: int) -> float:
    """4 GB(KiB) are sent and 2 received in 2 s on the first link, twice that on the second, ..."""
    sent, received = 2000 * (link + 1), 1000 * (link + 1)
    if "_TX_" in name:
        return sent
    return received if "_RX_" in name else sent + received


def _of_gpm(row: Field) -> float:
    """GPM reports percent, MiB/s or counts; ratios and B/s are exported."""
    source = row.whole
    assert isinstance(source, Gpm)
    raw = sum(map(catalogue_rig.gpm_raw, source.metrics)) / len(source.metrics)
    return {"ratio": raw / 100, "B/s": raw * 1048576, "cycles": raw, "bytes": raw}[row.unit]


def test_the_texts_of_labels() -> None:
    for name, answer, text in (
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_TESLA, "Tesla"),
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_NVIDIA, "NVIDIA"),
        ("DCGM_FI_DEV_BRAND", pynvml.NVML_BRAND_TITAN_RTX, "Titan RTX"),
        ("DCGM_FI_DEV_BRAND", 99, "99"),
        ("DCGM_FI_DEV_SERIAL", b"0123", "0123"),
        ("DCGM_FI_DEV_PCI_SUBSYS_ID", 0x16C110DE, "0x16C110DE"),
        ("DCGM_FI_DEV_VBIOS_VERSION", "96.00", "96.00"),
    ):
        assert as_text(name, answer) == text
