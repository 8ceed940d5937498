import asyncio
import os
from pathlib import Path

import pytest

from nodeagent.errors import UsageError
from tests.app.health_rig import Rig
from tests.health.rig import GPU
from tests.machine_load import until

# --- what is kept ---------------------------------------------------------------------------------


async def test_a_reboot_ends_them_before_anything_is_planned(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.running():
        rig.see()
        rig.xid(79)
    after = Rig(tmp_path, boot="boot-2")
    await after.part.load()
    assert after.causes() == []
    assert [kind for kind, _ in after.reported()] == ["GpuRecovered"]


async def test_a_damaged_file_is_logged_and_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "health.json").write_text('{"version": 1')
    rig = Rig(tmp_path)
    async with rig.running():
        assert (tmp_path / "health.json.unusable").exists()
    assert (tmp_path / "health.json").read_text().endswith("}")
    assert "health.json cannot be used: " in capsys.readouterr().out


async def test_full_disk_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    rig = Rig(tmp_path, state=tmp_path / "file" / "health.json")
    async with rig.running():
        rig.see()
        rig.xid(95)
        await until(lambda: rig.causes() == ["xidReset"])
    assert capsys.readouterr().out.count("cannot be kept") == 1


async def test_the_end_comes_while_it_is_written(tmp_path: Path) -> None:
    for number in range(20):
        rig = Rig(tmp_path, state=tmp_path / f"{number}.json")
        async with rig.running():  # which writes the boot's id at once
            rig.see()
            rig.xid(95)
        after = Rig(tmp_path, state=tmp_path / f"{number}.json")
        await after.part.load()
        assert after.causes() == ["xidReset"]


# --- the table of XIDs ----------------------------------------------------------------------------


async def test_ones_own_classes_count_and_clear(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.running():
        rig.see()
        rig.xid(95)
        rig.xid(62)
    table = tmp_path / "xids.yaml"
    table.write_text("version: v1\nxids:\n- {xid: 95, class: information}\n")
    after = Rig(tmp_path, xids=table)
    await after.part.load()
    assert [finding.code for finding in after.part.state.findings] == [62]
    assert "cleared by hand" in after.reported()[0][1]
    after.xid(95)
    assert [finding.code for finding in after.part.state.findings] == [62]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: v1\nxids:\n- {xid: 95, class: deadly}\n", 'xids[0].class: found "deadly"'),
        ("version: v1\n", "the key xids is missing"),
        (None, "No such file"),
    ],
)
async def test_a_table_that_is_not_accepted(tmp_path: Path, text: str | None, said: str) -> None:
    table = tmp_path / "xids.yaml"
    if text is not None:
        table.write_text(text)
    with pytest.raises(UsageError) as caught:
        await Rig(tmp_path, xids=table).part.load()
    assert str(caught.value).startswith(f"health.xids: {table}")
    assert said in str(caught.value)


# --- the kernel log -------------------------------------------------------------------------------


def _line(number: int, *, sequence: int, at: float) -> bytes:
    record = f"3,{sequence},{int(at * 1e6)},-;NVRM: Xid (PCI:0000:1a:00): {number}, pid=1, name=x\n"
    return record.encode()


@pytest.mark.parametrize("drift", [0.0, -60.0, 60.0])
async def test_the_kernel_log_is_the_second_source(tmp_path: Path, drift: float) -> None:
    os.mkfifo(tmp_path / "kmsg")
    kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    rig = Rig(tmp_path, kernel_log=tmp_path / "kmsg")
    os.write(kernel, _line(62, sequence=7, at=990.0))
    async with rig.running():
        await asyncio.sleep(0.02)
        assert rig.causes() == []  # whose it is, is not known yet
        rig.see()
        await until(lambda: rig.causes() == ["xidReset"])
        assert rig.part.state.findings[0].place.gpu == GPU
        rig.xid(95)
        os.write(kernel, _line(95, sequence=8, at=rig.uptime + drift))
        await until(lambda: rig.part.state.kernel_log_read == 8)
        assert [(c.xid, c.count) for c in rig.part.state.xids] == [(62, 1), (95, 1)]
    os.write(kernel, _line(62, sequence=7, at=990.0) + _line(94, sequence=9, at=1001.0))
    after = Rig(tmp_path, kernel_log=tmp_path / "kmsg")
    async with after.running():
        await until(lambda: after.part.state.kernel_log_read == 9)
        assert [(c.xid, c.count) for c in after.part.state.xids] == [(62, 1), (95, 1), (94, 1)]
    os.close(kernel)


async def test_what_was_long_before_the_first_agent_of_a_boot(tmp_path: Path) -> None:
    """It may have been mended since: what lasts is measured, what is older is not reported."""
    os.mkfifo(tmp_path / "kmsg")
    kernel = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    rig = Rig(tmp_path, kernel_log=tmp_path / "kmsg")
    os.write(kernel, _line(62, sequence=1, at=300.0) + _line(95, sequence=2, at=500.0))
    async with rig.running():
        rig.see()
        await until(lambda: bool(rig.part.state.xids))
        assert [count.xid for count in rig.part.state.xids] == [95]
    os.close(kernel)
