import json
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nodeagent.api.limits import Refusals
from nodeagent.api.listening import listen
from nodeagent.reconcile.event_log import EventType
from nodeagent.structs import replace
from nodeagent.views.node_state import Reading
from nodeagent.views.status_report import status_json
from tests.api.browser import CHROMIUM, Tab, tab
from tests.api.page_states import BESIDE, BUSY, IDLE, MARKUP, SICK, STATES, WANTED
from tests.api.serving import Agent
from tests.views.example_node import FIRST, OBSERVED, SECOND

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")

HOST = "127.0.0.1"
# A browser that is slow to paint; `paint` has what waits for that.
NO_FRAMES = "window.requestAnimationFrame = (then) => { window.paint = then; };"
ANSWERED = "performance.getEntriesByType('resource').filter((one) => one.responseEnd).length >= 2"
# What a screen reader finds: no two buttons that copy differently sound alike, and a picture is
# read as its sentence alone.
BUTTONS = "[...document.querySelectorAll('.copy')]"
ALIKE = (
    f"new Set({BUTTONS}.map((one) => one.ariaLabel + one.dataset.copy)).size"
    f" - new Set({BUTTONS}.map((one) => one.ariaLabel)).size"
)
READ_TWICE = "document.querySelectorAll('.picture > :not([aria-hidden])').length"
ESCAPE = "new KeyboardEvent('keydown', {key: 'Escape', bubbles: true})"
TYPED = "dispatchEvent(new Event('input'))"
WITH_ROOM = {"idle", "busy", "working", "blocked", "many", "sharing", "no plan"}
COLUMNS = "[...document.querySelectorAll('.grid > thead th')].filter((th) => !th.hidden).length"
ADVISED = "[...document.querySelectorAll('#advice tbody')].map((one) => one.rows.length)"
_AXE = os.environ.get("NODEAGENT_TEST_AXE")  # the path of axe-core's axe.min.js
AXE = Path(_AXE).read_text(encoding="utf-8") if _AXE else ""
VIOLATIONS = "axe.run().then((all) => all.violations.map((one) => [one.id, one.nodes[0].html]))"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


async def _headline_is(page: Tab, text: str) -> None:
    await page.until(f"byId('headline').textContent.includes({json.dumps(text)})")


async def _preview(page: Tab, plan: str) -> None:
    await page.value(f"byId('pasted').value = {json.dumps(plan)}; byId('preview').click()")


async def _is_dense(page: Tab, name: str, gpus: int) -> None:
    """One row for each GPU, all in one screen, and not much more on a telephone."""
    assert await page.value("document.querySelectorAll('#gpus tr.gpu').length") == gpus
    if name in {"full", "one lost"}:
        await page.show_on(390, "light")
        assert await page.value("document.documentElement.scrollHeight") < 2300
        await page.show_on(1280, "light")
        assert await page.value("byId('gpus').getBoundingClientRect().bottom") < 800
        silent = await page.value("document.querySelectorAll('#gpus .at-silence').length")
        assert silent == (name == "one lost")


async def _fits_every_screen(page: Tab, name: str, pictures: Path | None) -> None:
    for width in (1280, 360):
        for scheme in ("light", "dark"):
            await page.show_on(width, scheme)
            assert await page.value(FITS), f"{name} is wider than {width} pixels"
            if pictures:
                await page.picture(pictures / f"{name}-{width}-{scheme}.png")
                if AXE:
                    await page.value(AXE + "; 0")
                    assert await page.value(VIOLATIONS) == [], name


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.full)], ids=["", "pictures"])
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where pictures are to be left for people to look at; they and axe take most of the time."""
    return tmp_path if request.param else None


async def test_every_state_on_every_screen(tmp_path: Path, pictures: Path | None) -> None:
    agent = Agent(OBSERVED)
    kind, after = EventType.CHANGED_FOR_CLAIM, "1g.10gb at 0"  # before the page was opened
    agent.events.add(kind, "GPU 0 now has it", gpu=FIRST, before="no instances", after=after)
    agent.histories.add(10.0, {SECOND: Reading(50.0, 60, 300.0, 1 << 30)})
    async with listen(agent, HOST, 0, Refusals()) as port, tab(tmp_path) as page:
        for name, state in STATES.items():
            agent.state = state
            status = status_json(state)
            assert status is not None
            await page.open(f"http://{HOST}:{port}/")
            await _headline_is(page, status["headline"]["text"])
            looks_well = await page.value("document.querySelector('header .tone-ok') !== null")
            assert looks_well is (status["headline"]["severity"] == "ok"), name
            await page.until("byId('timeline').textContent.includes('beforeno instances')")
            assert await page.value("byId('timeline').textContent.includes('after1g.10gb at 0')")
            waiting = await page.value("document.querySelectorAll('#gpus .is-blocking.box').length")
            assert waiting == {"blocked": 1, "many": 7}.get(name, 0)
            wanted = await page.value("byId('gpus').textContent.includes('wanted')")
            assert wanted is (waiting > 0), name
            assert not await page.value("byId('counts').textContent.includes('in use by')")
            await _is_dense(page, name, len(status["gpus"]))
            lines = await page.value("document.querySelectorAll('#gpus .spark').length")
            assert lines == 4 * sum(gpu["uuid"] == SECOND for gpu in status["gpus"])
            await page.value("document.querySelectorAll('.toggle').forEach((one) => one.click())")
            ready = await page.value("byId('claims').querySelector('.tone-ok') !== null")
            assert ready is (name in {"busy", "sharing"}), "a claim on a sick GPU looks well"
            room = await page.value("byId('gpus').textContent.includes('Room for')")
            assert room is (name in WITH_ROOM), name
            unread = await page.value("document.body.classList.contains('unread')")
            assert unread is (name == "driver"), "what is known last looks as read now"
            rows = await page.value("document.querySelectorAll('#mps tbody tr').length")
            assert (
                name != "sharing" or rows == 1 + 10 + 1 + 1
            )  # the daemon, clients, more, one waits
            rows = await page.value("document.querySelectorAll('#claims tbody tr').length")
            assert rows == len(status.get("claims", [])), "one of several with the same key is lost"
            advised = await page.value("byId('advice').textContent")
            assert "(main)3g.40gb, 40.0 GiB2 d 7 hsmaller: 1g.10gb, frees 38 %" in advised
            known = {key for gpu in status["gpus"] for key in gpu}
            columns = 6 + ("smClock" in known) + bool(known & {"xids", "eccCorrected"})
            assert await page.value(COLUMNS) == columns * bool(status["gpus"]), name
            wrong = await page.value("byId('mps').textContent.includes('no memory limit')")
            assert wrong is (name == "sharing"), "the last client is left out"
            hidden = await page.value(r"byId('mps').textContent.includes('in\\u202efer.py')")
            assert hidden is (name == "sharing")
            assert await page.value(ALIKE) == 0
            assert await page.value(READ_TWICE) == 0
            await _fits_every_screen(page, name, pictures)
        assert page.errors == []


async def test_the_page_follows_the_agent_and_its_end(
    tmp_path: Path, pictures: Path | None
) -> None:
    agent = Agent(OBSERVED)
    agent.state = IDLE
    async with AsyncExitStack() as agents, tab(tmp_path) as page:
        port = await agents.enter_async_context(listen(agent, HOST, 0, Refusals()))
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=NO_FRAMES)
        await page.open(f"http://{HOST}:{port}/")
        await page.until(ANSWERED)
        await page.value("fetch('/v1/plan').then((answer) => answer.text())")  # a later answer
        assert await page.value("document.querySelector('header').innerText.split('\\n')[0]") == (
            "Asking the agent."
        )
        assert await page.value("byId('main').hidden")
        await page.value("paint()")
        await page.until("byId('gpus').querySelectorAll('.box.is-idle').length === 4")
        await page.value("byId('gpus').querySelector('button').click()")
        await page.value("byId('gpus').querySelector('.copy').focus()")

        agent.state = BUSY
        agent.events.add(EventType.OTHER_OWNER, "something else came", gpu=FIRST)
        await page.until("byId('gpus').querySelectorAll('.box.is-used').length === 2")
        await page.until("byId('timeline').textContent.includes('something else came')")
        agent.state = SICK  # what is wrong stands above what has the focus
        agent.events.add(EventType.OTHER_OWNER, "something else came", gpu=FIRST)
        await page.until("byId('timeline').textContent.includes('something else came (2 times')")
        await page.until("byId('gpus').querySelector('.details .plain') !== null")
        assert await page.value("byId('timeline').querySelectorAll('tbody tr').length") == 1
        assert await page.value("document.activeElement === byId('gpus').querySelector('.copy')")
        assert await page.value(f"byId('gpus').textContent.includes({json.dumps(MARKUP)})")
        assert await page.value("document.querySelectorAll('img').length") == 0

        await page.value(f"document.activeElement.dispatchEvent({ESCAPE})")
        assert await page.value("document.activeElement === byId('gpus').querySelector('button')")
        assert await page.value("document.activeElement.ariaExpanded === 'false'")
        assert await page.value("byId('gpus').querySelector('.copy') === null")
        await page.value(f"byId('events-text').value = 'No such'; byId('events-text').{TYPED}")
        assert await page.value("byId('timeline').textContent") == "Nothing of that."
        await page.value(f"byId('events-text').value = 'ELSE'; byId('events-text').{TYPED}")
        assert await page.value("byId('timeline').querySelectorAll('tbody tr').length") == 1

        await _preview(page, BESIDE)
        await page.until("byId('previewed').textContent.includes('can be applied')")
        assert await page.value("byId('previewed').querySelectorAll('.box.is-fresh').length") == 2
        await _fits_every_screen(page, "preview", pictures)
        await _preview(page, WANTED)
        await page.until("byId('previewed').textContent.includes('has to wait')")
        assert await page.value("byId('previewed').querySelectorAll('.is-blocking').length") == 1
        assert await page.value("byId('previewed').querySelectorAll('.box.is-fresh').length") == 4
        await _fits_every_screen(page, "preview-blocked", pictures)
        assert page.errors == []

        await agents.aclose()
        await page.until("document.body.classList.contains('away')")
        said = await page.value("byId('away').textContent")
        assert said.startswith("Not answering since ")
        assert "UTC" in said
        await page.until("byId('headline').textContent.startsWith('? Last known:')")
        assert await page.value("document.querySelectorAll('header .tone-ok').length") == 0
        assert await page.value("byId('counts').textContent.includes('last known: InSync')")
        await _fits_every_screen(page, "stopped", pictures)
        assert page.errors == []

        async with listen(agent, HOST, port, Refusals()):
            await page.value("byId('retry').click()")
            await page.until("!document.body.classList.contains('away')")
            assert await page.value("byId('banner').hidden")
        assert page.errors == []


async def test_most_advice_is_folded(tmp_path: Path) -> None:
    agent = Agent(OBSERVED)
    agent.state, smaller = IDLE, agent.advised[0]
    keep = [replace(smaller, workload=f"w{n}", verdict="keep") for n in range(70)]
    async with listen(agent, HOST, 0, Refusals()) as port, tab(tmp_path) as page:
        for advised, rows in (((), []), (keep[:1], [1]), ((*keep, *[smaller] * 9), [5, 50])):
            agent.advised = tuple(advised)
            await page.open(f"http://{HOST}:{port}/")
            await page.until("byId('gpus').textContent !== ''")
            assert await page.value(ADVISED) == rows
            folded = await page.value("byId('advice').querySelectorAll('details table').length")
            assert folded == bool(rows)
